"""Tail probabilities of gamma and beta laws in mpmath: sums of positive terms, so nothing cancels."""

import mpmath as mp

_DIGITS = 40


def log_gamma_tails(shape, x):
    """(log P(a, x), log Q(a, x)) for a shape that is 1/2 or a whole number; x as a float or an mpf."""
    with mp.workdps(_DIGITS + 20):
        a, x = mp.mpf(shape), mp.mpf(x)
        if x < a:
            terms = _sum_of_ratios(x / (a + n) for n in _count(1))
            small = a * mp.log(x) - x - mp.loggamma(a + 1) + mp.log(terms)
            return small, _log1mexp(small)
        if a == 0.5:
            small = mp.log(mp.erfc(mp.sqrt(x)))
        else:  # e^-x (x^(a-1) / (a-1)! + ... + x + 1), from its first term
            terms = _sum_of_ratios((a - n) / x for n in _count(1))
            small = (a - 1) * mp.log(x) - x - mp.loggamma(a) + mp.log(terms)
        return _log1mexp(small), small


def log_beta_tails(a, b, x, xc):
    """(log I_x(a, b), log I_xc(b, a)) for a whole b; x and xc as floats, the smaller one is believed."""
    with mp.workdps(_DIGITS):
        x, xc = (mp.mpf(x), 1 - mp.mpf(x)) if x < xc else (1 - mp.mpf(xc), mp.mpf(xc))
        # In the upper tail 1 - I_x loses as many digits as the result has zeros.
        zeros = int(max(0, -mp.log10(xc) * b)) if x * b > xc * a else 0
    with mp.workdps(_DIGITS + 20 + 2 * zeros):
        x, xc = (x, 1 - x) if x < 0.5 else (1 - xc, xc)
        # x^a (1 + a xc + a (a + 1) / 2! xc^2 + ...), b terms.
        term = total = mp.mpf(1)
        for k in range(1, int(b)):
            term = term * (a + k - 1) / k * xc
            total += term
        log_cdf = a * mp.log(x) + mp.log(total)
        return log_cdf, _log1mexp(log_cdf)


def relative_error(value, truth):
    """abs(value / truth - 1); a truth too small for float64 counts as 0."""
    if abs(truth) < mp.mpf(10) ** -300:
        return float(abs(value))
    return float(abs((mp.mpf(float(value)) - truth) / truth))


def _log1mexp(v):
    return mp.log(-mp.expm1(v)) if v > -1 else mp.log1p(-mp.exp(v))


def _count(n):
    while True:
        yield n
        n += 1


def _sum_of_ratios(ratios):
    """1 + q_1 + q_1 q_2 + ... for falling ratios, until nothing changes; ends where a ratio is 0."""
    term = total = mp.mpf(1)
    for ratio in ratios:
        term *= ratio
        if term < total * mp.eps:
            return total
        total += term
    raise AssertionError

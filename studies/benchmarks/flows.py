"""Time of convex potential flows and of their training on one thread: medians, and ratios to plain code.

    python -m studies.benchmarks.flows

writes results/flows.json. A convex potential flow (16 features, 40 units, 2 layers), trained on a curved law,
is compared with a straightforward implementation with the same weights: the Hessian by autograd with d
backward passes, and decoding by one L-BFGS over the whole batch, in float32 (which stops early) and in
float64 (which converges). ``train_flow`` is compared with a bare loop that performs the same steps on the
same batches (forward, backward, clipping, Adam) and the same validation pass after each epoch, and ends with
the same weights. The two sides take turns, and a ratio is the median over the turns. All times are processor
times, so that other load on the machine has little influence.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from latentcal.flows import ConvexPotentialFlow, mean_nll, train_flow

RESULTS = Path(__file__).parent / "results" / "flows.json"
DIMENSIONS = (2, 4, 8, 16)
FEATURES, HIDDEN, LAYERS = 16, 40, 2
BATCH, POINTS = 512, 1000
ROWS, VALIDATION_ROWS, EPOCHS = 8 * BATCH, 2 * BATCH, 10

Encode = Callable[[ConvexPotentialFlow, Tensor, Tensor], tuple[Tensor, Tensor]]
Action = Callable[[int], object]


def curved(dim: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features (n, 16) and outputs (n, d); each output depends on the previous one and on x."""
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(n, FEATURES, generator=generator), torch.randn(n, dim, generator=generator)
    columns = [noise[:, 0] * torch.exp(0.5 * x[:, 0])]
    for k in range(1, dim):
        bent = torch.tanh(columns[-1]) ** 2 + torch.sin(x[:, k % FEATURES])
        columns.append(bent + 0.2 * noise[:, k] * torch.exp(0.3 * x[:, 0]))
    return x, torch.stack(columns, -1)


def fresh(dim: int) -> ConvexPotentialFlow:
    torch.manual_seed(0)
    return ConvexPotentialFlow(dim, FEATURES, hidden=HIDDEN, layers=LAYERS)


def trained(dim: int) -> ConvexPotentialFlow:
    flow = fresh(dim)
    data, validation = curved(dim, ROWS, 0), curved(dim, VALIDATION_ROWS, 1)
    train_flow(flow, *data, validation=validation, batch_size=BATCH, learning_rate=5e-3, max_epochs=100)
    return flow


def encode(flow: ConvexPotentialFlow, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return flow.encode(y, x)


def plain_encode(flow: ConvexPotentialFlow, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Plain encoding: the gradient by autograd, and the Hessian by one backward pass per output."""
    training = torch.is_grad_enabled()
    with torch.enable_grad():
        u = (y - flow.first_shift) * torch.exp(flow.first_log_scale)
        value = flow.potential.value(u, flow.potential.context_of(x))
        (v,) = torch.autograd.grad(value.sum(), u, create_graph=True)
        rows = [
            torch.autograd.grad(v[:, k].sum(), u, create_graph=training, retain_graph=True)[0]
            for k in range(y.shape[-1])
        ]
        factor = torch.linalg.cholesky(torch.stack(rows, -2))
        log_det = 2 * torch.log(factor.diagonal(dim1=-2, dim2=-1)).sum(-1)
        z = (v - flow.last_shift) * torch.exp(flow.last_log_scale)
    return z, log_det + flow.first_log_scale.sum() + flow.last_log_scale.sum()


@torch.no_grad()
def decode(flow: ConvexPotentialFlow, z: Tensor, x: Tensor) -> Tensor:
    return flow.decode(z, x)


def plain_decode(flow: ConvexPotentialFlow, z: Tensor, x: Tensor) -> Tensor:
    """Plain decoding: one L-BFGS over the whole batch on the sum of the objectives, until convergence."""
    with torch.no_grad():
        v = z * torch.exp(-flow.last_log_scale) + flow.last_shift
        context = flow.potential.context_of(x)
    u = v.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [u], max_iter=1000, tolerance_grad=1e-12, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        loss = flow.potential.value(u, context).sum() - (v * u).sum()
        (u.grad,) = torch.autograd.grad(loss, u)
        return loss

    optimizer.step(objective)  # type: ignore[arg-type]
    with torch.no_grad():
        return u * torch.exp(-flow.first_log_scale) + flow.first_shift


@torch.no_grad()
def worst_error(flow: ConvexPotentialFlow, y: Tensor, z: Tensor, x: Tensor) -> float:
    """Largest distance of encode(y) from z."""
    return float((flow.encode(y, x)[0] - z).norm(dim=-1).max())


def check_agreement(flow: ConvexPotentialFlow, x: Tensor, y: Tensor) -> None:
    """Assert that both encodings give the same latents, log-determinants and weight gradients in float64."""
    flow, x, y = flow.double(), x.double(), y.double()
    results = []
    for method in (encode, plain_encode):
        z, log_abs_det = method(flow, y, x)
        loss = -(flow.base.log_prob(z) + log_abs_det).mean()
        gradients = torch.autograd.grad(loss, list(flow.parameters()))
        results.append([z.detach(), log_abs_det.detach(), *gradients])
    for ours, theirs in zip(*results, strict=True):
        # torch's softplus is linear above 20, so that autograd misses a curvature of 2e-9 there.
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    flow.float()


def step_of(flow: ConvexPotentialFlow, method: Encode, x: Tensor, y: Tensor) -> Action:
    """A training step with learning rate 0, which computes everything and keeps the weights."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=0.0)

    def step(turn: int) -> None:
        z, log_abs_det = method(flow, y, x)
        loss = -(flow.base.log_prob(z) + log_abs_det).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        optimizer.step()

    return step


def log_prob_of(flow: ConvexPotentialFlow, method: Encode, x: Tensor, y: Tensor) -> Action:
    @torch.no_grad()
    def log_prob(turn: int) -> Tensor:
        z, log_abs_det = method(flow, y, x)
        return flow.base.log_prob(z) + log_abs_det

    return log_prob


def library_training(x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor]) -> ConvexPotentialFlow:
    flow = fresh(y.shape[1])
    train_flow(
        flow, x, y, validation=validation, batch_size=BATCH, max_epochs=EPOCHS, restore_best=False, seed=0
    )
    return flow


def bare_training(x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor]) -> ConvexPotentialFlow:
    """The same training as a bare loop, without log, checks, best weights or early stopping."""
    flow = fresh(y.shape[1])
    flow.initialize(x[:BATCH], y[:BATCH])
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        order = torch.randperm(len(y), generator=generator)
        shuffled_x, shuffled_y = x[order], y[order]
        for start in range(0, len(y), BATCH):
            z, log_abs_det = flow.encode(shuffled_y[start : start + BATCH], shuffled_x[start : start + BATCH])
            loss = -(flow.base.log_prob(z) + log_abs_det).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
            optimizer.step()
        mean_nll(flow, *validation)
    return flow


def seconds(action: Action, turn: int, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        action(turn)
        times.append(time.process_time() - start)
    return statistics.median(times)


def compare(ours: Action, plain: Action, turns: int, repeat: int = 3) -> dict[str, float]:
    """Milliseconds of both actions (each turn is the median of several runs), and the median ratio."""
    ours(0)
    plain(0)
    pairs = [(seconds(ours, turn, repeat), seconds(plain, turn, repeat)) for turn in range(turns)]
    return {
        "ms": round(1e3 * statistics.median(ours for ours, _ in pairs), 2),
        "plain_ms": round(1e3 * statistics.median(plain for _, plain in pairs), 2),
        "plain_ms_longest": round(1e3 * max(plain for _, plain in pairs), 2),
        "ratio": round(statistics.median(plain / ours for ours, plain in pairs), 2),
    }


def measure(dim: int, turns: int) -> dict[str, dict[str, float]]:
    flow, batch, (x, y) = trained(dim), curved(dim, BATCH, 2), curved(dim, POINTS, 3)
    check_agreement(flow, *batch)
    report = {
        "training step": compare(step_of(flow, encode, *batch), step_of(flow, plain_encode, *batch), turns),
        "1,000 log-densities": compare(
            log_prob_of(flow, encode, x, y), log_prob_of(flow, plain_encode, x, y), turns
        ),
    }
    # Other latents each turn: the time and the end point of L-BFGS vary strongly.
    z = torch.randn(turns, POINTS, dim, generator=torch.Generator().manual_seed(4))
    error = max(worst_error(flow, decode(flow, draw, x), draw, x) for draw in z)
    # L-BFGS uses the sum over the batch; its rounding in float32 hides errors of single points.
    for name, precise in (("1,000 samples", flow), ("1,000 samples, L-BFGS in float64", trained_copy(flow))):
        dtype = precise.first_shift.dtype
        own_x, own_z = x.to(dtype), z.to(dtype)
        plain = lambda turn, flow=precise, x=own_x, z=own_z: plain_decode(flow, z[turn], x)  # noqa: E731
        report[name] = compare(lambda turn: decode(flow, z[turn], x), plain, turns)
        errors = [worst_error(precise, plain(turn), own_z[turn], own_x) for turn in range(turns)]
        report[name] |= {"worst_error": error, "plain_worst_error": max(errors)}
    return report


def trained_copy(flow: ConvexPotentialFlow) -> ConvexPotentialFlow:
    copy = fresh(flow.dim)
    copy.load_state_dict(flow.state_dict())
    return copy.double()


def measure_training(dim: int, turns: int) -> dict[str, float]:
    data, validation = curved(dim, ROWS, 0), curved(dim, VALIDATION_ROWS, 1)
    flows = [train(*data, validation) for train in (library_training, bare_training)]
    for ours, bare in zip(*(flow.parameters() for flow in flows), strict=True):
        assert torch.equal(ours, bare), "the bare loop does not do what train_flow does"
    pairs = [
        [
            seconds(lambda turn, train=train: train(*data, validation), turn, 1)
            for train in (library_training, bare_training)
        ]
        for turn in range(turns)
    ]
    return {
        "train_flow_ms": round(1e3 * statistics.median(ours for ours, _ in pairs), 1),
        "bare_loop_ms": round(1e3 * statistics.median(bare for _, bare in pairs), 1),
        "ratio": round(statistics.median(ours / bare for ours, bare in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, object] = {
        "command": "python -m studies.benchmarks.flows",
        "threads": 1,
        "torch": torch.__version__,
        "flow": {"features": FEATURES, "hidden": HIDDEN, "layers": LAYERS, "batch": BATCH},
    }
    results = {}
    print(f"{'':<34}{'d':>3}{'ms':>9}{'plain ms':>10}{'ratio':>8}{'worst error':>13}{'plain':>10}")
    for dim in DIMENSIONS:
        rows = results[dim] = report[f"d = {dim}"] = measure(dim, arguments.turns)
        for name, row in rows.items():
            line = f"{name:<34}{dim:>3}{row['ms']:>9.2f}{row['plain_ms']:>10.2f}{row['ratio']:>8.2f}"
            if "worst_error" in row:
                line += f"{row['worst_error']:>13.1e}{row['plain_worst_error']:>10.1e}"
            print(line, flush=True)
    first, last = (results[dim]["training step"]["ms"] for dim in (DIMENSIONS[0], DIMENSIONS[-1]))
    report["step, d = 16 / d = 2"] = round(last / first, 2)
    print(f"a step at d = 16 costs {last / first:.2f} times one at d = 2")
    for dim in (DIMENSIONS[0], DIMENSIONS[-1]):
        overhead = report[f"train_flow, d = {dim}"] = measure_training(dim, arguments.turns)
        print(
            f"train_flow, d = {dim}: {overhead['train_flow_ms']:.0f} ms for {EPOCHS} epochs of "
            f"{ROWS // BATCH} steps, {overhead['ratio']:.3f} times the bare loop"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

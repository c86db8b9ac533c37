"""Another processor, simulated: results of arithmetic that differ in their last bits.

``LATENTCAL_ROUNDING=1 pytest`` replaces torch's products, sums and transcendental functions on the CPU by
ones whose results are off by up to one unit in the last place. The error depends on the result, on the
position of the operands in memory (as in the matrix products of real libraries) and on the given number, so
the same operations on the same tensors still give the same bits. Zero, infinity, NaN and results that are
exact on every processor, such as sums of small integers, stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv")
_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "softplus", "sin", "cos", "logaddexp"),
    *("erf", "erfc", "erfinv", "lgamma", "digamma", "igamma", "igammac", "special_ndtri", "special_log_ndtr"),
    *("_softmax", "_log_softmax"),
)
_SUMS = {"sum.dim_IntList": "IntList_out", "mean.dim": "out", "logsumexp": "out"}
_INTEGERS = {torch.float32: (torch.int32, 0x3F), torch.float64: (torch.int64, 0xFFF)}
_LIBRARY: list[torch.library.Library] = []  # what is registered lasts as long as its library


def install(number: int) -> None:
    """Make this process round as processor ``number`` does; 0 stands for the real one."""
    if number == 0 or _LIBRARY:
        return
    library = torch.library.Library("aten", "IMPL")
    named = dict.fromkeys((*_PRODUCTS, *_FUNCTIONS), "out") | _SUMS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
        for name, overload in named.items():
            packet = getattr(torch.ops.aten, name.split(".")[0])
            library.impl(name, _rounded(getattr(packet, overload), number), "CPU")
    _LIBRARY.append(library)


def _rounded(exact: Callable[..., Tensor], number: int) -> Callable[..., Tensor]:
    def kernel(*arguments: Any, **options: Any) -> Tensor:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        dtype = options.get("dtype") or torch.result_type(tensors[0], tensors[-1])
        function = exact._schema.name.removeprefix("aten::") in _FUNCTIONS
        if not dtype.is_floating_point and not dtype.is_complex:
            dtype = torch.get_default_dtype() if function else torch.int64
        result = exact(*arguments, **options, out=torch.empty(0, dtype=dtype))
        if result.dtype not in _INTEGERS or result.numel() == 0:
            return result
        integer, low = _INTEGERS[result.dtype]
        bits = result.contiguous().view(integer)
        position = sum(tensor.data_ptr() % 64 for tensor in tensors)
        mixed = (bits * 2_654_435_761 + number * 40_503 + position) >> 7
        normal = result.abs() >= torch.finfo(result.dtype).tiny  # among subnormal numbers bits - 2 can be NaN
        inexact = torch.isfinite(result) & normal & (bits & low != 0)
        moved = torch.where(inexact, (bits + mixed.remainder(3) - 1).view(result.dtype), result)
        if function:  # no processor's exp(-1e-16) is above 1
            moved = torch.where(result.abs() <= 1, moved.clamp(-1, 1), moved)
        return moved

    return kernel

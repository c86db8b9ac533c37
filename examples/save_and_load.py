"""Save a recalibrated model to a folder: safetensors and JSON, a few kilobytes, no pickle.

python examples/save_and_load.py [folder]    # writes model/ and law/ there, into demo/ by default
"""

import sys
from pathlib import Path

import torch

import latentcal as lc


def main(folder: Path) -> None:
    """Save and load a flow of latentcal, and the law of a flow from another library."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(2000, generator)
    model = lc.recalibrate(lc.flows.LinearGaussianFlow.fit(x[:1000], y[:1000]), x[1000:], y[1000:])
    lc.save(model, folder / "model")
    same = lc.load(folder / "model")
    print("same log densities:", torch.allclose(same(x).log_prob(y), model(x).log_prob(y)))
    size = sum(path.stat().st_size for path in (folder / "model").iterdir())
    print(f"{size / 1024:.0f} kB; calibrated on {same.recalibration.n:,} rows")

    # For a flow from another library, only the law is saved; you provide the flow.
    theirs = lc.from_functions(
        lambda y, x: (y - x[:, :2], y.new_zeros(len(y))), lambda z, x: z + x[:, :2], dim=2
    )
    lc.save(lc.recalibrate(theirs, x[1000:], y[1000:]), folder / "law")
    try:
        lc.load(folder / "law")
    except lc.files.ModelFileError as error:
        print("without the flow:", error)
    print("with it:", type(lc.load(folder / "law", flow=theirs).base.radius).__name__)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))

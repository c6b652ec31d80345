"""The command ``framelane models check``; what it measures is in ``checking.py``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click
import msgspec

from .checking import ModelReport, check_model, model_toml
from .devices import parse_device
from .errors import FramelaneError, ModelError

_FAILED = 3


@click.command("check")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="cpu", show_default=True, help="Where to measure: cpu, cuda[:N], tensorrt[:N].")
@click.option("--max-batch", default=16, show_default=True, type=click.IntRange(1, 1024), help="Largest batch to try.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=H,W,C", help="Shape of one item, where the file leaves it."
)
@click.option("--fp16", is_flag=True, help="Also write model.fp16.onnx beside it, and measure its error (needs onnx).")
@click.option("--force", is_flag=True, help="Replace a model.toml that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and write no model.toml.")
def main(
    model: Path, device: str, max_batch: int, shapes: tuple[str, ...], fp16: bool, force: bool, as_json: bool
) -> None:
    """Measure MODEL.onnx on a device, and write the model.toml that serving it needs.

    Reports inputs, outputs and batches, what a card would leave to the CPU, the operators that take the time with the
    known cure, and memory. Source and licence are for you to fill in.
    """
    try:
        report = check_model(
            model, parse_device(device), shapes=dict(map(_shape, shapes)), max_batch=max_batch, fp16=fp16
        )
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(_FAILED)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report, enc_hook=str)))
        return
    for line in describe(report):
        click.echo(line)
    _write(report, force)


def describe(report: ModelReport) -> list[str]:
    """The report for a person."""
    spec = report.spec
    lines = [
        f"{spec.name} on {report.device}: " + ", ".join(f"{count} × {name}" for name, count in report.nodes.items())
    ]
    for side, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        lines += [f"  {side:<8} {tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
    per_item = {size: ms / size for size, ms in report.run_ms.items()}
    lines += [f"  batch {size:<3} {ms:8.3f} ms, {per_item[size]:7.3f} per item" for size, ms in report.run_ms.items()]
    lines.append(f"  best     batches of {report.best}; up to {spec.max_batch} are safe")
    if not report.dynamic:
        lines.append("  fixed    the batch axis is fixed at 1: exported with a free one, frames could share a run")
    if report.unsafe:
        lines.append(f"  unsafe   {report.unsafe}")
    lines.append(f"  memory   {report.memory / 2**20:.0f} MiB")
    for op in report.slow:
        lines.append(f"  time     {op.share:4.0%} in {op.nodes} × {op.name}" + (f": {op.cure}" if op.cure else ""))
    if report.on_cpu:
        names = ", ".join(f"{count} × {name}" for name, count in report.on_cpu.items())
        lines.append(f"  on CPU   {names}: each costs a copy from the card and back")
    if report.breaks_graphs:
        lines.append(f"  graphs   no CUDA graph can hold {', '.join(report.breaks_graphs)}: serve without --gpu-graphs")
    if report.fp16_error is not None:
        lines.append(
            f"  fp16     model.fp16.onnx, largest error {report.fp16_error:.1e} of each output's largest value"
        )
    return lines


def _write(report: ModelReport, force: bool) -> None:
    spec = report.spec
    target = spec.path.with_name("model.toml")
    if target.exists() and not force:
        click.echo(f"\n{target} is there and was left alone; --force replaces it")
        return
    target.write_text(model_toml(spec))
    click.echo(f"\nwrote {target}; fill in source and licence")
    if spec.path.name != "model.onnx":
        click.echo(
            f"`serve` looks for DIR/NAME/model.onnx: put both into a folder {spec.name}/ and rename {spec.path.name}"
        )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, sizes = text.partition("=")
    with contextlib.suppress(ValueError):
        if separator and name:
            return name, tuple(int(size) for size in sizes.split(",") if size)
    raise ModelError(f"--shape {text}: write it as NAME=224,224,3, the shape of one item without its batch axis")


if __name__ == "__main__":
    main()

"""Record what the built-in models are given for the sample picture: the input that simulated devices answer with.

    python models/convert/record.py        writes models/weights/NAME/recorded.npz for each model of face_mesh

A simulated device (``--device sim:…``) computes nothing; its outputs are those of one real run, made when it is opened,
of this input.
"""

from __future__ import annotations

import numpy as np

from framelane.models.inline import Inline, InlinePort
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import BUILTIN_DIRECTORY, Registry
from framelane.preprocess.decode import ImageDecoder

PICTURE = BUILTIN_DIRECTORY.parent / "samples" / "astronaut.jpg"


def main() -> None:
    """Run the pipeline once and store the first input of each model, as it lies in its cell."""
    pipeline = load_pipeline("face_mesh")
    run = Inline(pipeline, Registry(), ImageDecoder())
    run(PICTURE.read_bytes())
    for model in run.models:
        assert isinstance(model.port, InlinePort)
        spec = model.port.session.spec
        inputs = dict(zip((tensor.name for tensor in spec.inputs), model.port.lend(0), strict=True))
        path = spec.path.with_name("recorded.npz")
        np.savez_compressed(path, **inputs)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

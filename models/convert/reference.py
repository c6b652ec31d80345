"""The pictures that conversions are tried on, and the originals run on them with LiteRT."""

from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image
from sources import FaceModel

PICTURE = Path(__file__).resolve().parents[2] / "tests" / "data" / "astronaut.png"

# Where to cut: top, left, step between pixels, and 1 for the negative. Whole picture, a face, and a negative whose
# bright border shows a wrong padding.
CROPS = {
    "blazeface_short": ((0, 0, 4, 0), (60, 150, 1, 0), (0, 0, 4, 1)),
    "face_landmark": ((24, 128, 1, 0), (0, 0, 2, 0), (24, 128, 1, 1)),
}


def crops(name: str, side: int) -> np.ndarray:
    """The test pictures of a model: uint8 [N, side, side, 3], RGB."""
    picture = np.asarray(Image.open(PICTURE).convert("RGB"))
    cuts = []
    for top, left, step, negative in CROPS[name]:
        cut = picture[top : top + side * step : step, left : left + side * step : step]
        cuts.append(255 - cut if negative else cut)
    return np.stack(cuts)


class Original:
    """The TFLite model on one thread, with the XNNPACK kernels that LiteRT uses by default."""

    def __init__(self, model: FaceModel, data: bytes) -> None:
        self.model = model
        self.interpreter = Interpreter(model_content=data, num_threads=1)
        self.interpreter.allocate_tensors()
        self.side = int(self.interpreter.get_input_details()[0]["shape"][1])

    def run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for one uint8 picture [side, side, 3], by their ONNX names, without a batch axis."""
        scaled = (image.astype(np.float32) - np.float32(self.model.source.offset)) * np.float32(self.model.source.scale)
        self.interpreter.set_tensor(self.interpreter.get_input_details()[0]["index"], scaled[None])
        self.interpreter.invoke()
        return {
            name: self.interpreter.get_tensor(tensor).reshape(shape)
            for name, (tensor, shape) in self.model.source.outputs.items()
        }

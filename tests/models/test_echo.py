import pictures

from framelane.models.inline import Inline
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess.decode import ImageDecoder


def test_echo_answers_the_header_as_displayed() -> None:
    run = Inline(load_pipeline("echo"), Registry(), ImageDecoder())
    assert run(pictures.jpeg(48, 32)) == ({"width": 48, "height": 32, "format": "jpeg"}, b"")
    turned = pictures.with_exif(pictures.jpeg(48, 32), pictures.tiff(6))
    assert run(turned)[0] == {"width": 32, "height": 48, "format": "jpeg"}
    assert run(pictures.png())[0]["format"] == "png"

"""The errors of Framelane: one tree, shared by every part.

    FramelaneError            code        retryable
    ├── ModelError            bad_model   no         a model's folder, its model.toml or its ONNX file is not usable
    │   └── UnknownModelError unknown_model  no     no searched folder holds a model of that name
    ├── PipelineError         bad_pipeline   no     a pipeline's code or options are not usable
    └── InvalidFrame          invalid        no     a client's bytes that a pipeline cannot use

Other modules extend the tree where their own errors belong, and keep the three fields: a `code` for programs,
a message for a person, and whether sending the same thing again may succeed.
"""


class FramelaneError(Exception):
    """An error with a code for programs and a message for a person.

    `code` and `retryable` belong to the class; an instance may override either.
    """

    code: str = "error"
    retryable: bool = False

    def __init__(self, message: str = "", *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class ModelError(FramelaneError):
    """A model that cannot be used: its folder, its `model.toml` or its ONNX file is wrong."""

    code = "bad_model"


class UnknownModelError(ModelError):
    """No searched folder holds a model of that name."""

    code = "unknown_model"


class PipelineError(FramelaneError):
    """A pipeline that cannot be used: its import, its options, or the way it calls its models is wrong."""

    code = "bad_pipeline"


class InvalidFrame(FramelaneError):
    """A client's bytes that a pipeline cannot use: no image, a damaged one, or one beyond the limits."""

    code = "invalid"

"""Options of ONNX Runtime's providers, batch buckets and memory budgets, as plain values."""

from pathlib import Path

import pytest

from framelane.models.devices import DeviceError, parse_device
from framelane.models.providers import Tuning, arena_budget, bucket_table, buckets, engine_key, providers
from framelane.models.registry import Registry

SPEC = Registry([]).get("blazeface_short")
GIB = 2**30


def test_a_cuda_session_has_its_options_by_name() -> None:
    ((name, options),) = providers(parse_device("cuda:2"), Tuning(memory=GIB, precision="fp32", graphs=True), SPEC)
    assert name == "CUDAExecutionProvider"
    assert options == {
        "device_id": "2",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "use_tf32": "0",
        "prefer_nhwc": "0",
        "enable_cuda_graph": "1",
        "gpu_mem_limit": str(GIB),
    }


def test_tensorrt_builds_one_engine_for_all_batches_and_keeps_it_by_model_card_and_version(tmp_path: Path) -> None:
    tuning = Tuning(cache=str(tmp_path), precision="fp16")
    key = engine_key(SPEC, "NVIDIA L4", "8.9", "runtime-gpu1.32.0")
    (name, options), (fallback, _) = providers(parse_device("tensorrt"), tuning, SPEC, key)
    assert (name, fallback) == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert options["trt_profile_min_shapes"] == "image:1x128x128x3"
    assert options["trt_profile_max_shapes"] == f"image:{SPEC.max_batch}x128x128x3"
    assert {value for option, value in options.items() if option.endswith("_enable")} == {"True", "False"}
    assert (options["trt_fp16_enable"], options["trt_cuda_graph_enable"]) == ("True", "False")
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "True"
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == str(tmp_path / key)
    assert key == f"{SPEC.sha256[:16]}-NVIDIA_L4-sm8.9-runtime-gpu1.32.0"


def test_tensorrt_is_not_asked_for_a_precision_that_it_would_not_have() -> None:
    with pytest.raises(DeviceError, match=r"tf32 or fp16; for fp32 use --device cuda"):
        providers(parse_device("tensorrt"), Tuning(precision="fp32"), SPEC)


def test_the_cpu_has_no_options() -> None:
    assert providers(parse_device("cpu"), Tuning(graphs=True), SPEC) == [("CPUExecutionProvider", {})]


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12)), (3, (1, 2, 3))]
)
def test_buckets_double_up_to_the_largest_batch(most: int, sizes: tuple[int, ...]) -> None:
    assert buckets(most) == sizes
    for count, bucket in enumerate(bucket_table(most)):
        assert bucket in sizes
        assert bucket >= count


@pytest.mark.parametrize(("card", "processes", "models"), [(22.5, 2, 2), (22.5, 16, 2), (44, 20, 2), (44, 60, 1)])
def test_all_slots_of_a_card_fit_at_their_largest(card: float, processes: int, models: int) -> None:
    budget = arena_budget(int(card * GIB), processes, models)
    assert processes * (models * budget + 512 * 2**20) <= card * GIB
    assert budget >= 128 * 2**20


def test_slots_that_cannot_fit_are_refused_with_the_number_that_would() -> None:
    with pytest.raises(
        DeviceError, match=r"60 slots with 2 model\(s\) each do not fit a card of 22.5 GiB.* most 28 fit"
    ):
        arena_budget(int(22.5 * GIB), 60, 2)
    arena_budget(int(22.5 * GIB), 28, 2)

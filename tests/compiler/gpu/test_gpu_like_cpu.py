"""What holds for programs of the CPU holds for those of the interpreter: the same tests, another machine."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from compiler.gpu.program import DeviceExecutable
from compiler.plan import Request
from kernels.gpu.emulator import Emulator
from tests.compiler import test_program
from tests.compiler.test_program import (  # noqa: F401
    test_a_failed_check_stops_before_anything_is_written,
    test_a_program_runs_again_on_other_arrays,
    test_a_quotient_is_not_a_product_with_a_reciprocal,
    test_a_slice_of_an_input_updated,
    test_a_strided_input_is_written_in_its_own_layout,
    test_an_input_replaced_by_its_product_with_a_matrix,
    test_an_input_reversed_or_turned_into_itself,
    test_an_input_scattered_into_and_gathered_from_itself,
    test_an_update_in_place,
    test_exact_graphs_give_the_interpreters_bits,
    test_literals_survive,
    test_no_multiply_add_is_fused,
    test_old_values_are_read_before_they_are_overwritten,
    test_one_value_written_to_two_inputs_and_returned,
    test_outputs_that_are_inputs_views_constants_or_twice_the_same,
    test_random_graphs_are_near_the_interpreter,
    test_random_writes,
    test_reductions_of_nothing,
    test_shapes_without_or_with_one_element,
    test_strided_inputs,
    test_sums_of_a_million_stay_accurate,
    test_two_inputs_change_places,
)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests make programs of the interpreter."""

    def make(request: Request) -> DeviceExecutable:
        return DeviceExecutable(request, Emulator())

    monkeypatch.setattr(test_program, "Executable", make)

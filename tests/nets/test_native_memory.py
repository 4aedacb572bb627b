"""The memory that networks in C work in."""

from __future__ import annotations

import ctypes

import pytest

from sf.machine.compiled import NoCompilerError
from sf.nets.fast.small_networks import Network, Offsets, functions


@pytest.mark.parametrize("rows", [1, 128, 4096])
@pytest.mark.parametrize("inputs", [4, 1000, 200_000])
def test_memory_grows_with_the_number_of_inputs_and_not_with_its_square(inputs: int, rows: int) -> None:
    try:
        library = functions()
    except NoCompilerError as error:
        pytest.skip(str(error))
    network = Network(num_inputs=inputs, num_layers=2, num_params=2, num_towers=2, sizes=Offsets(64, 64))
    of_rows = rows * (3 * max(inputs, 64) + 2 * 128 + 2 * 2)
    of_one_product = (max(rows, inputs) + 64) * (min(rows, inputs) + 64 + 32)
    assert of_rows / 2 < library.sf_scratch(ctypes.addressof(network), rows) <= of_rows + of_one_product

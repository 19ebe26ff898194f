//! Columns of requests: numpy arrays, read in place.

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A column of Python's.
pub type Column<'py, T> = PyReadonlyArray1<'py, T>;

/// A column as a slice; columns must be contiguous.
pub fn slice<'a, T: numpy::Element>(column: &'a Column<'_, T>) -> PyResult<&'a [T]> {
    column.as_slice().map_err(|_| PyValueError::new_err("columns must be contiguous arrays"))
}

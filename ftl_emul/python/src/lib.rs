//! Python binding of the emulated SSD.

use pyo3::prelude::*;

/// The compiled part of `ftl_emul`.
#[pymodule]
mod _core {}

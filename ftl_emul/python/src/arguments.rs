//! Arguments and results that `pyo3` has no type of, and their types in the stubs (`ftl_emul/_core.pyi`).

use std::convert::Infallible;

use ftl_core::engine::Stopped;
use numpy::{Element, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
#[cfg(feature = "stubs")]
use pyo3::inspect::{PyStaticConstant, PyStaticExpr};
use pyo3::prelude::*;
use pyo3::types::PyString;
#[cfg(feature = "stubs")]
use pyo3::{type_hint_identifier, type_hint_subscript};

/// numpy's name of the type of an element.
pub trait Named: Element {
    #[cfg(feature = "stubs")]
    const NAME: &'static str;
}

macro_rules! named {
    ($($element:ty => $name:literal),+) => {
        $(impl Named for $element {
            #[cfg(feature = "stubs")]
            const NAME: &'static str = $name;
        })+
    };
}
named!(u8 => "uint8", u16 => "uint16", u64 => "uint64", i64 => "int64");

/// A column of requests: a numpy array, read in place.
pub struct Column<'py, T: Named>(PyReadonlyArray1<'py, T>);

impl<T: Named> Column<'_, T> {
    /// The column as a slice; columns must be contiguous.
    pub fn slice(&self) -> PyResult<&[T]> {
        self.0.as_slice().map_err(|_| PyValueError::new_err("columns must be contiguous arrays"))
    }
}

impl<'a, 'py, T: Named + 'a> FromPyObject<'a, 'py> for Column<'py, T> {
    type Error = <PyReadonlyArray1<'py, T> as FromPyObject<'a, 'py>>::Error;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = type_hint_subscript!(
        type_hint_identifier!("numpy.typing", "NDArray"),
        PyStaticExpr::Attribute { value: &PyStaticExpr::Name { id: "numpy" }, attr: T::NAME }
    );

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Self::Error> {
        object.extract().map(Self)
    }
}

/// Called with a number as work proceeds; its exception ends the work.
pub struct Progress(Py<PyAny>);

impl Progress {
    pub fn report(&self, py: Python<'_>, progress: f64) -> PyResult<()> {
        self.0.call1(py, (progress,)).map(drop)
    }
}

impl<'py> FromPyObject<'_, 'py> for Progress {
    type Error = Infallible;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: PyStaticExpr = type_hint_subscript!(
        type_hint_identifier!("collections.abc", "Callable"),
        PyStaticExpr::List { elts: &[type_hint_identifier!("builtins", "float")] },
        type_hint_identifier!("builtins", "object")
    );

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self(object.to_owned().unbind()))
    }
}

/// Why virtual time stopped.
pub struct Reason(&'static str);

impl Reason {
    /// The reason, and the tenants that wait for input.
    pub fn of(stopped: Stopped) -> (Self, Vec<u16>) {
        match stopped {
            Stopped::Time => (Self("time"), Vec::new()),
            Stopped::Writes => (Self("writes"), Vec::new()),
            Stopped::Starved(tenants) => (Self("starved"), tenants.into_iter().map(|t| t.0).collect()),
            Stopped::Idle => (Self("idle"), Vec::new()),
        }
    }
}

impl<'py> IntoPyObject<'py> for Reason {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = Infallible;

    #[cfg(feature = "stubs")]
    const OUTPUT_TYPE: PyStaticExpr = type_hint_subscript!(
        type_hint_identifier!("typing", "Literal"),
        PyStaticExpr::Constant { value: PyStaticConstant::Str("time") },
        PyStaticExpr::Constant { value: PyStaticConstant::Str("writes") },
        PyStaticExpr::Constant { value: PyStaticConstant::Str("starved") },
        PyStaticExpr::Constant { value: PyStaticConstant::Str("idle") }
    );

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyString::new(py, self.0))
    }
}

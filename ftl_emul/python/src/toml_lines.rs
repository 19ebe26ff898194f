//! Positions of keys in a TOML file. Python's own parser, `tomllib`, keeps no positions.

use pyo3::prelude::*;
use toml::de::{DeTable, DeValue};

/// A step of the path to a value.
#[derive(Clone, IntoPyObject)]
pub enum Step {
    Key(String),
    Index(usize),
}

/// The line of each key, table and element of an array, and its path.
struct Lines {
    /// Start of each line except the first.
    starts: Vec<usize>,
    found: Vec<(Vec<Step>, usize)>,
}

/// Skips invalid parts, because `tomllib` reports their errors.
pub fn toml_lines(text: &str) -> Vec<(Vec<Step>, usize)> {
    let starts = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    let mut lines = Lines { starts, found: Vec::new() };
    lines.table(DeTable::parse_recoverable(text).0.get_ref(), &[]);
    lines.found
}

impl Lines {
    fn table(&mut self, table: &DeTable, path: &[Step]) {
        for (key, value) in table {
            self.value(value.get_ref(), key.span().start, path, Step::Key(key.get_ref().to_string()));
        }
    }

    fn value(&mut self, value: &DeValue, at: usize, path: &[Step], last: Step) {
        let path = [path, &[last]].concat();
        self.found.push((path.clone(), self.starts.partition_point(|&start| start <= at) + 1));
        match value {
            DeValue::Table(table) => self.table(table, &path),
            DeValue::Array(array) => {
                for (index, element) in array.iter().enumerate() {
                    self.value(element.get_ref(), element.span().start, &path, Step::Index(index));
                }
            }
            _ => {}
        }
    }
}

//! A trace as the bus programs read it.

use super::{error::BusError, F};

/// A column-major trace: `values[column * height + row]`.
#[derive(Clone, Copy, Debug)]
pub struct TraceView<'a> {
    values: &'a [F],
    width: usize,
    height: usize,
}

impl<'a> TraceView<'a> {
    /// A view of `width × height` values, column by column.
    pub fn new(values: &'a [F], width: usize, height: usize) -> Self {
        Self {
            values,
            width,
            height,
        }
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The value in a column and row.
    #[inline]
    pub fn get(&self, column: usize, row: usize) -> F {
        self.values[column * self.height + row]
    }

    /// An error unless the view is `width` columns of at least `live_rows` rows.
    pub(super) fn check(&self, width: usize, live_rows: usize) -> Result<(), BusError> {
        if self.width == width
            && live_rows <= self.height
            && self.values.len() == width * self.height
        {
            Ok(())
        } else {
            Err(BusError::Shape {
                values: self.values.len(),
                width,
                height: self.height,
                live_rows,
            })
        }
    }
}

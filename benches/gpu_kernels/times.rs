//! What repeated measurements come to.

use eyre::{eyre, Result};
use serde::Serialize;

/// Of several times, in their unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The mean.
    pub mean: f64,
    /// The shortest.
    pub min: f64,
    /// The longest.
    pub max: f64,
}

impl Times {
    /// Sums them up.
    ///
    /// # Errors
    /// If there are none.
    pub fn of(mut times: Vec<f64>) -> Result<Self> {
        times.sort_by(f64::total_cmp);
        let count = times.len();
        let (Some(&min), Some(&max)) = (times.first(), times.last()) else {
            return Err(eyre!("there are no times to sum up"));
        };
        // The same one twice if their number is odd.
        let median = (times[(count - 1) / 2] + times[count / 2]) / 2.0;
        Ok(Self {
            median,
            mean: times.iter().sum::<f64>() / count as f64,
            min,
            max,
        })
    }
}

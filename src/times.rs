//! What repeated measurements come to.

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
    /// Sorts them and sums them up; `None` if there are none.
    pub fn of(times: &mut [f64]) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let count = times.len();
        let (&min, &max) = (times.first()?, times.last()?);
        Some(Self {
            // The same one twice if their number is odd.
            median: (times[(count - 1) / 2] + times[count / 2]) / 2.0,
            mean: times.iter().sum::<f64>() / count as f64,
            min,
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Times;

    #[test]
    fn times_are_summed_up() {
        let of = |times: &[f64]| {
            let times = Times::of(&mut times.to_vec()).expect("there are some");
            (times.median, times.mean, times.min, times.max)
        };
        assert_eq!(of(&[3.0]), (3.0, 3.0, 3.0, 3.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), (2.0, 4.0, 1.0, 9.0));
        assert_eq!(of(&[8.0, 1.0, 4.0, 3.0]), (3.5, 4.0, 1.0, 8.0));
        assert_eq!(Times::of(&mut []), None);
    }
}

//! What a pipeline tells of its progress, to a terminal or to nobody.

/// Receives the progress of long steps. All methods may be called from any thread.
pub trait Progress: Send + Sync {
    /// A step begins. `total` is how many units it has, if that is known.
    fn start(&self, step: &str, total: Option<u64>);

    /// Units are done.
    fn advance(&self, units: u64);

    /// The step is over; `summary` says what came of it.
    fn finish(&self, summary: &str);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _step: &str, _total: Option<u64>) {}
    fn advance(&self, _units: u64) {}
    fn finish(&self, _summary: &str) {}
}

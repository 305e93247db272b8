//! Progress bars on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use openvm_apc::pipeline::Progress;

const TICK: Duration = Duration::from_millis(120);

/// Shows progress on standard error.
pub struct Terminal {
    is_terminal: bool,
    current: Mutex<Option<(String, ProgressBar)>>,
}

impl Terminal {
    /// Bars if standard error is a terminal, lines if not.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            current: Mutex::default(),
        }
    }
}

impl Progress for Terminal {
    fn start(&self, step: &str, total: Option<u64>) {
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::no_length(),
        };
        if self.is_terminal {
            let template = match total {
                Some(_) => "{spinner} {msg} [{bar:30}] {pos}/{len} {elapsed}",
                None => "{spinner} {msg} {elapsed}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(TICK);
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            match total {
                Some(total) => eprintln!("{step} ({total}) …"),
                None => eprintln!("{step} …"),
            }
        }
        bar.set_message(step.to_string());
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, unfinished)) = current.replace((step.to_string(), bar)) {
            unfinished.finish_and_clear();
        }
    }

    fn advance(&self, units: u64) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bar)) = &*current {
            bar.inc(units);
        }
    }

    fn finish(&self, summary: &str) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((step, bar)) = current.take() {
            bar.finish_and_clear();
            eprintln!("{step}: {summary}");
        }
    }
}

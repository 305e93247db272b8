//! How the records of the original instructions get from the executor to the chip.
//!
//! The executor opens arenas of its own when it sees an empty APC arena, under a fresh token; every call writes
//! that token into the APC arena; the chip takes the arenas that the token names. So nothing is confused by cloned
//! configurations, by two VMs of one configuration, or by executions whose traces are never generated.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many executions of one APC may wait for their trace. Older ones are dropped: an execution without trace
/// generation must not hold memory for ever.
pub const PENDING_LIMIT: usize = 64;

/// The arenas of one execution's original instructions.
pub struct OriginalArenas<RA> {
    /// One arena per AIR of the trace plan.
    pub arenas: Vec<RA>,
    /// One arena per AIR for the instructions of which no column survived; reset after each.
    pub discarded: Vec<RA>,
}

#[derive(Default)]
struct Pending {
    next_token: u64,
    /// By the address of the APC arena, which does not move while it is being filled.
    open: HashMap<usize, u64>,
    arenas: BTreeMap<u64, Box<dyn Any + Send>>,
}

/// The pending records of one APC.
#[derive(Default)]
pub struct RecordStore {
    pending: Mutex<Pending>,
}

impl RecordStore {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // A panic elsewhere leaves the maps whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` on the arenas that belong to the APC arena at `address`, opening them with `open` if the APC arena
    /// is empty. Returns the token, and what `call` returned.
    pub fn with_arenas<RA: Send + 'static, R>(
        &self,
        address: usize,
        is_empty: bool,
        open: impl FnOnce() -> OriginalArenas<RA>,
        call: impl FnOnce(&mut OriginalArenas<RA>) -> R,
    ) -> (u64, R) {
        let known = {
            let mut pending = self.lock();
            let token = pending.open.get(&address).copied().filter(|_| !is_empty);
            token.and_then(|token| Some((token, pending.arenas.remove(&token)?)))
        };
        let known = known.and_then(|(token, arenas)| {
            Some((token, arenas.downcast::<OriginalArenas<RA>>().ok()?))
        });
        let (token, mut arenas) = known.unwrap_or_else(|| {
            let mut pending = self.lock();
            let token = pending.next_token;
            pending.next_token += 1;
            pending.open.insert(address, token);
            (token, Box::new(open()))
        });
        // The call runs without the lock: other executions of this APC go on meanwhile.
        let result = call(&mut arenas);
        let mut pending = self.lock();
        pending.arenas.insert(token, arenas);
        while pending.arenas.len() > PENDING_LIMIT {
            if let Some((oldest, _)) = pending.arenas.pop_first() {
                pending.open.retain(|_, open| *open != oldest);
            }
        }
        (token, result)
    }

    /// Takes the arenas that a token names, if they are still there.
    pub fn take<RA: Send + 'static>(&self, token: u64) -> Option<OriginalArenas<RA>> {
        let mut pending = self.lock();
        pending.open.retain(|_, open| *open != token);
        let arenas = pending.arenas.remove(&token)?;
        arenas.downcast().ok().map(|arenas| *arenas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> OriginalArenas<Vec<u32>> {
        OriginalArenas {
            arenas: vec![vec![]],
            discarded: vec![],
        }
    }

    fn record(store: &RecordStore, address: usize, is_empty: bool, value: u32) -> u64 {
        store
            .with_arenas(address, is_empty, open, |arenas| {
                arenas.arenas[0].push(value)
            })
            .0
    }

    #[test]
    fn interleaved_executions_keep_apart() {
        let store = RecordStore::default();
        let first = record(&store, 100, true, 1);
        let second = record(&store, 200, true, 2);
        assert_eq!(record(&store, 100, false, 3), first);
        // An arena allocated where an untraced one was: a new execution.
        let third = record(&store, 200, true, 4);
        assert_ne!(second, third);
        let arenas = |token| {
            store
                .take::<Vec<u32>>(token)
                .map(|arenas| arenas.arenas[0].clone())
        };
        assert_eq!(arenas(first), Some(vec![1, 3]));
        assert_eq!(arenas(third), Some(vec![4]));
        assert_eq!(arenas(second), Some(vec![2]));
        assert_eq!(arenas(second), None);
    }

    #[test]
    fn untraced_executions_do_not_pile_up() {
        let store = RecordStore::default();
        let first = record(&store, 0, true, 0);
        for address in 1..=PENDING_LIMIT {
            record(&store, address, true, 0);
        }
        assert!(store.take::<Vec<u32>>(first).is_none());
        assert_eq!(store.lock().arenas.len(), PENDING_LIMIT);
        assert_eq!(store.lock().open.len(), PENDING_LIMIT);
    }
}

//! The record arenas that APC calls write to, whatever the backend.

use openvm_circuit::arch::{Arena, DenseRecordArena, MatrixRecordArena};
use p3_field::PrimeCharacteristicRing;

use crate::bus::F;

/// Bytes of one call's record in the APC's own arena: the token of the execution it belongs to.
pub const CALL_RECORD_BYTES: usize = size_of::<u64>();

/// A record arena that an APC can be called with.
///
/// OpenVM hands the APC's executor the arena of the APC's AIR. A call leaves one small record there, so that heights
/// and emptiness are right; the records of the original instructions go to arenas of ours.
pub trait ApcArena: Arena + Send + 'static {
    /// How many calls the arena of an APC with `width` columns was made for.
    fn call_capacity(&self, width: usize) -> usize;

    /// Leaves the record of one call of an APC with `width` columns (two or more).
    fn push_call(&mut self, width: usize, token: u64);

    /// The number of calls recorded, and their token, if there are any.
    fn calls(&self, width: usize) -> Option<(usize, u64)>;

    /// Forgets all records, keeping the capacity.
    fn reset(&mut self);
}

impl ApcArena for MatrixRecordArena<F> {
    fn call_capacity(&self, width: usize) -> usize {
        self.trace_buffer.len() / width.max(1)
    }

    fn push_call(&mut self, _width: usize, token: u64) {
        self.alloc_single_row()[..CALL_RECORD_BYTES].copy_from_slice(&token.to_ne_bytes());
    }

    fn calls(&self, width: usize) -> Option<(usize, u64)> {
        if self.is_empty() {
            return None;
        }
        let words = self
            .trace_buffer
            .get(..CALL_RECORD_BYTES / size_of::<F>())?;
        let mut token = [0; CALL_RECORD_BYTES];
        // SAFETY: `F` is a `repr(transparent)` wrapper of `u32`, so the words are `CALL_RECORD_BYTES` initialized
        // bytes, which `u8` may alias.
        token.copy_from_slice(unsafe {
            std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), CALL_RECORD_BYTES)
        });
        Some((self.trace_offset / width.max(1), u64::from_ne_bytes(token)))
    }

    fn reset(&mut self) {
        self.trace_buffer[..self.trace_offset].fill(F::ZERO);
        self.trace_offset = 0;
    }
}

impl ApcArena for DenseRecordArena {
    fn call_capacity(&self, width: usize) -> usize {
        self.capacity() / (width.max(1) * size_of::<u32>())
    }

    fn push_call(&mut self, _width: usize, token: u64) {
        self.alloc_bytes(CALL_RECORD_BYTES)
            .copy_from_slice(&token.to_ne_bytes());
    }

    fn calls(&self, _width: usize) -> Option<(usize, u64)> {
        let records = self.allocated();
        let token = records.first_chunk::<CALL_RECORD_BYTES>()?;
        Some((
            records.len() / CALL_RECORD_BYTES,
            u64::from_ne_bytes(*token),
        ))
    }

    fn reset(&mut self) {
        self.align_to(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records_calls<A: ApcArena>() {
        let width = 5;
        let mut arena = A::with_capacity(4, width);
        assert!(arena.call_capacity(width) >= 4);
        assert_eq!(arena.calls(width), None);
        let token = 0x0123_4567_89ab_cdef;
        for _ in 0..3 {
            arena.push_call(width, token);
        }
        assert_eq!(arena.calls(width), Some((3, token)));
        arena.reset();
        assert!(arena.is_empty());
        assert_eq!(arena.calls(width), None);
    }

    #[test]
    fn matrix_arena() {
        records_calls::<MatrixRecordArena<F>>();
    }

    #[test]
    fn dense_arena() {
        records_calls::<DenseRecordArena>();
    }
}

//! Amounts of memory, for people.

const MEBIBYTE: u64 = 1 << 20;

/// A number of bytes in MiB, rounded up; in bytes below one.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < MEBIBYTE {
        format!("{bytes} bytes")
    } else {
        format!("{} MiB", bytes.div_ceil(MEBIBYTE))
    }
}

#[cfg(test)]
mod tests {
    use super::{size, MEBIBYTE};

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(MEBIBYTE - 1), "1048575 bytes");
        assert_eq!(size(MEBIBYTE), "1 MiB");
        assert_eq!(size(MEBIBYTE + 1), "2 MiB");
        assert_eq!(size(u64::MAX), "17592186044416 MiB");
    }
}

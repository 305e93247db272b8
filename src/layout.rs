//! Pinning the layout of structures that kernels read.

/// Asserts size, alignment and the place of every field of a `#[repr(C)]` structure: `PIN_LAYOUT` and `PIN_FIELD` of
/// `cuda/include/layout.cuh` have the same numbers on the device's side. A field that is not listed does not compile.
macro_rules! device_layout {
    ($name:ident: size $size:literal, align $align:literal { $($field:ident: $offset:literal),+ $(,)? }) => {
        const _: () = {
            assert!(std::mem::size_of::<$name>() == $size && std::mem::align_of::<$name>() == $align);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)+
            fn _all_fields($name { $($field: _),+ }: &$name) {}
        };
    };
}

pub(crate) use device_layout;

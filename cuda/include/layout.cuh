// Pinning the layout of structures that host and device share: `device_layout!` of `src/layout.rs` has the same numbers on
// the host's side, so a change that is made on one side alone does not compile.
#pragma once

#include <cstddef>
#include <cstdint>

#define PIN_LAYOUT(type, size, alignment) \
    static_assert(sizeof(type) == (size) && alignof(type) == (alignment), #type " differs from the host's")
#define PIN_FIELD(type, field, offset) \
    static_assert(offsetof(type, field) == (offset), #type "::" #field " is elsewhere than the host's")

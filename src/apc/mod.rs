//! Building APCs: ISA, AIR extraction, bus map, bus interaction handler, adapter, program rewriting.

//! `cli-openvm`: arguments, logging, progress, reports. No logic.

fn main() {}

//! guest → profile → select APCs → setup → execute | prove → verify, with artifacts on disk.

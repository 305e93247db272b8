//! Bus interactions → programs → histograms. Host only; knows no VM.

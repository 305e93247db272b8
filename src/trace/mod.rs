//! APC trace generation, substage by substage.

//! Events of a run as progress bars, plain lines and JSON lines.

//! Saving and restoring a page mapping, bit for bit.

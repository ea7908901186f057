//! The kinds of quotas and their document.

use gvm::model::quota;

/// `GVM_BLESS=1` writes the document anew.
#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/quotas.md");
    let wanted = quota::document();
    if std::env::var_os("GVM_BLESS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(there, wanted, "docs/quotas.md is not the table's; GVM_BLESS=1 writes it");
}

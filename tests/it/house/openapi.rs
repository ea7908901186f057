//! The description of the API: a file that changes with the code, and only on purpose.

use serde_json::Value;

use super::{none, root};

/// With this variable set, the file is written anew instead of compared.
const BLESS: &str = "GVM_BLESS";
const FILE: &str = "docs/api.json";

fn document() -> Value {
    serde_json::from_str(&gvm::api::server::openapi()).unwrap()
}

/// Every operation with its path, method and description.
pub fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            found.push((path.clone(), method.to_uppercase(), operation.clone()));
        }
    }
    found
}

#[test]
fn the_description_is_the_one_that_was_agreed() {
    let now = gvm::api::server::openapi() + "\n";
    let path = root().join(FILE);
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(path, now).unwrap();
        return;
    }
    let agreed = std::fs::read_to_string(path).unwrap_or_default();
    if agreed == now {
        return;
    }
    let different = agreed.lines().zip(now.lines()).position(|(a, b)| a != b).unwrap_or(0);
    panic!(
        "the API has changed at line {} of {FILE}:\n  agreed: {}\n  now:    {}\nIs that meant? {BLESS}=1 cargo test --test it openapi",
        different + 1,
        agreed.lines().nth(different).unwrap_or("(nothing)").trim(),
        now.lines().nth(different).unwrap_or("(nothing)").trim(),
    );
}

#[test]
fn every_operation_says_how_it_refuses() {
    let document = document();
    let mut wrong = Vec::new();
    for (path, method, operation) in operations(&document) {
        let responses = operation["responses"].as_object().unwrap();
        let refusals: Vec<_> = responses.iter().filter(|(status, _)| status.starts_with(['4', '5'])).collect();
        let mut say = |what: &str| wrong.push(format!("{method} {path}: {what}"));
        if !responses.contains_key("403") {
            say("does not document 403, which every caller without a place here gets");
        }
        if path.contains('{') && !responses.contains_key("404") {
            say("names a thing and does not document 404");
        }
        if operation.get("requestBody").is_some() && !responses.contains_key("400") {
            say("takes a body and does not document 400");
        }
        for (status, response) in refusals {
            if response["content"]["application/json"]["schema"]["$ref"] != "#/components/schemas/ErrorBody" {
                say(&format!("{status} is not an ErrorBody"));
            }
        }
        if operation["description"].as_str().or(operation["summary"].as_str()).unwrap_or_default().is_empty() {
            say("says nothing about what it does");
        }
        if !path.starts_with("/v1/") {
            say("is not below /v1");
        }
    }
    none("operations", &wrong);
}

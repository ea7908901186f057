//! What the description of the API says of every operation alike: how one says who one is, and the refusals that any
//! of them may answer with.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// Refusals that are not of one operation alone.
const REFUSALS: [(&str, &str); 6] = [
    ("400", "the request is not understood"),
    ("401", "it is not known who asks"),
    ("403", "who asks may not"),
    ("405", "this path knows no such method"),
    ("429", "too many requests; the header Retry-After says when to come again"),
    ("503", "something that is needed for it does not answer now"),
];

/// Below it nobody has to say who they are: they are about to find out.
const OPEN: &str = "/v1/login";

/// Adds them where an operation does not have its own.
pub fn complete(document: &mut OpenApi) {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "an API token (`gvm token create`); on the unix socket the caller's account does without one",
        ))
        .build();
    document.components.get_or_insert_with(Components::new).add_security_scheme("token", SecurityScheme::Http(token));
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    for (name, path) in &mut document.paths.paths {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete, &mut path.patch];
        for operation in operations.into_iter().flatten() {
            add_refusals(operation);
            if name.starts_with(OPEN) {
                operation.security = Some(Vec::new());
            }
        }
    }
}

fn add_refusals(operation: &mut Operation) {
    for (status, what) in REFUSALS {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new().description(what).content("application/json", body).build();
        operation.responses.responses.entry(status.to_owned()).or_insert(RefOr::T(response));
    }
}

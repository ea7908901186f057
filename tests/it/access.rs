//! Tokens, HTTPS, and how often and how fast one may ask.

mod cli;
mod https;
mod rates;
mod tls;
mod tokens;

//! Parsing helpers, and how a bad command line is told.

use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;

use clap::error::ErrorKind;

use super::error::CliError;
use super::output::{Color, Format, Output, Talk};

/// Accepts a text that parses as `T` and keeps it as typed, for values that go over the wire as text.
///
/// # Errors
/// What `T` says of it.
pub fn checked<T>(text: &str) -> Result<String, String>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse::<T>().map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Tells why the command line cannot be used, or prints the help that was asked for, and returns the exit code.
pub fn tell(error: &clap::Error, args: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has seen enough is no failure.
            let _ = error.print();
            0
        }
        _ if wants_json(args) => {
            let text = error.render().to_string();
            // What is missing stands on lines of its own.
            let told = text.lines().take_while(|line| !line.is_empty() && !line.starts_with("Usage"));
            let told = told.map(str::trim).collect::<Vec<_>>().join(" ");
            let failure = CliError::invalid(told.trim_start_matches("error: ")).hint("see `gvm --help`");
            Output::new(Format::Json, Color::Never, Talk::Usual).error(&failure);
            2
        }
        _ => {
            let _ = error.print();
            2
        }
    }
}

/// True where `-o json` stands anywhere among arguments that could not be parsed.
fn wants_json(args: &[OsString]) -> bool {
    let words: Vec<&str> = args.iter().skip(1).filter_map(|arg| arg.to_str()).take_while(|arg| *arg != "--").collect();
    words.iter().any(|word| ["-ojson", "-o=json", "--format=json"].contains(word))
        || words.windows(2).any(|pair| matches!(pair, ["-o" | "--format", "json"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Mib;

    #[test]
    fn a_checked_value_stays_as_typed() {
        assert_eq!(checked::<Mib>("2 GiB").unwrap(), "2 GiB");
        assert!(checked::<Mib>("lots").unwrap_err().contains("512M"));
    }

    #[test]
    fn json_is_recognised_in_a_line_that_cannot_be_parsed() {
        let check = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for yes in ["gvm list -o json --bad", "gvm -ojson x", "gvm --format=json x"] {
            assert!(check(yes), "{yes}");
        }
        for no in ["gvm list", "gvm ssh dev -- -o json", "gvm list -o table"] {
            assert!(!check(no), "{no}");
        }
    }
}

//! One line of free text for people: a full name, what a team is for, why somebody is suspended.

use std::fmt;
use std::str::FromStr;

/// Characters of one.
const MAX: usize = 200;

/// Why a text is no line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Too long.
    #[error("the text is too long; use at most {MAX} characters")]
    TooLong,
    /// It would show something else than it is, or nothing.
    #[error("the text has an invisible character; leave out line breaks, control and direction characters")]
    Invisible,
}

/// One line of at most 200 characters, none of which is invisible or turns the others round; perhaps empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(String);

impl Line {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True where nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Marks of direction, joiners without width, separators of lines.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

impl FromStr for Line {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let text = text.trim_matches(' ');
        if text.chars().count() > MAX {
            return Err(LineError::TooLong);
        }
        if text.chars().any(is_invisible) {
            return Err(LineError::Invisible);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_people_are_lines_and_tricks_are_not() {
        for text in ["", "José Núñez", "李雷", " O'Brien, \"Bo\" "] {
            assert_eq!(text.parse::<Line>().unwrap().as_str(), text.trim());
        }
        for text in ["a\nb", "a\u{202e}b", "a\u{200f}", "\u{1b}[31m", "zero\u{200b}width"] {
            assert_eq!(text.parse::<Line>(), Err(LineError::Invisible), "{text:?}");
        }
        assert_eq!("x".repeat(201).parse::<Line>(), Err(LineError::TooLong));
    }
}

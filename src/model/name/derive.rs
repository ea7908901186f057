//! A user name from what another service says: `José.Núñez@uni.example`, `ANNA`, `李雷`, `-rf`.
//!
//! ```text
//!   text --local part--> lower case, allowed characters --> as it was, and not reserved?  -> plain
//!                                                \--------> cut, with a hash of the subject -> unique
//! ```

use sha2::{Digest as _, Sha256};

use super::UserName;

/// Letters of the hash: no two of them look alike, and none joins with another to look like a third.
const LETTERS: &[u8] = b"abcdefghjkpqstuxyz23456789";
/// Letters of the hash in a name: `26^10` subjects, so that ten thousand people never meet.
const SUFFIX: usize = 10;
/// What is left of 32 for the readable part.
const STEM: usize = 32 - 1 - SUFFIX;
/// The readable part where nothing of the text can be used.
const NAMELESS: &str = "user";

/// The names that a subject of another service may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The text itself, where it is a name and nothing but the domain of an address was taken away. Another may have it
    /// already, or one that looks like it.
    pub plain: Option<UserName>,
    /// One that only this subject has.
    pub unique: UserName,
}

/// The names of `subject`, from what a service says about it. `subject` never changes for one person and is nobody
/// else's: the service and its id of the person.
pub fn derive(text: &str, subject: &str) -> Derived {
    let local = text.split('@').next().unwrap_or_default();
    let plain = local.parse::<UserName>().ok().filter(|name| !name.is_reserved());
    let stem = match plain.as_ref().map(|name| name.as_str().to_owned()) {
        Some(name) => cut(&name),
        None => cut(&readable(local)),
    };
    let named = |stem: &str| format!("{stem}-{}", hash(subject)).parse::<UserName>();
    let unique = named(&stem).ok().filter(|name| !name.is_reserved());
    let unique = unique.or_else(|| named(NAMELESS).ok());
    Derived {
        plain,
        unique: unique.unwrap_or_else(|| unreachable!("a letter, a dash and letters of a hash are a name")),
    }
}

/// Lower case, only letters, digits and single dashes; Latin letters without their marks; first a letter.
fn readable(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars().take(200).flat_map(char::to_lowercase) {
        match letter {
            'a'..='z' | '0'..='9' => out.push(letter),
            '-' | '_' | '.' | ' ' | '/' | '+' => out.push('-'),
            other => out.push_str(unmarked(other)),
        }
    }
    out.trim_start_matches(|c: char| !c.is_ascii_lowercase())
        .split('-')
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

fn cut(stem: &str) -> String {
    let short: String = stem.chars().take(STEM).collect();
    let short = short.trim_end_matches(['-', '_']);
    if short.is_empty() { NAMELESS.to_owned() } else { short.to_owned() }
}

/// The plain letters of a Latin letter; nothing for what has none.
const fn unmarked(letter: char) -> &'static str {
    match letter {
        'à' | 'á' | 'â' | 'ã' | 'å' | 'ā' | 'ă' | 'ą' => "a",
        'ä' | 'æ' => "ae",
        'ç' | 'ć' | 'č' => "c",
        'ď' | 'đ' | 'ð' => "d",
        'è' | 'é' | 'ê' | 'ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
        'ğ' => "g",
        'ì' | 'í' | 'î' | 'ï' | 'ī' | 'ı' => "i",
        'ł' => "l",
        'ñ' | 'ń' | 'ň' => "n",
        'ò' | 'ó' | 'ô' | 'õ' | 'ō' | 'ő' => "o",
        'ö' | 'ø' | 'œ' => "oe",
        'ř' => "r",
        'ś' | 'š' | 'ş' | 'ș' => "s",
        'ß' => "ss",
        'ť' | 'ţ' | 'ț' => "t",
        'þ' => "th",
        'ù' | 'ú' | 'û' | 'ū' | 'ů' | 'ű' => "u",
        'ü' => "ue",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        _ => "",
    }
}

fn hash(subject: &str) -> String {
    let letters = Sha256::digest(subject.as_bytes());
    let letter = |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).copied().map_or('x', char::from);
    letters.iter().take(SUFFIX).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_services_become_names() {
        let mut table = String::new();
        let long = "a".repeat(200);
        for text in [
            "anna",
            "anna@uni.example",
            "anna_b",
            "ANNA",
            "José.Núñez@uni.example",
            "Müller",
            "李雷",
            "",
            "-rf",
            "..",
            "a/b",
            "../../etc/passwd",
            "root",
            "systemd-network",
            "gvm-gateway",
            "anna ",
            " anna",
            "4tune",
            "anna\u{200f}",
            "\u{202e}anna",
            "a\nb",
            "a--b",
            "@uni.example",
            "anna-",
            &long,
        ] {
            let Derived { plain, unique } = derive(text, "https://id.example 1");
            let plain = plain.as_ref().map_or("-", UserName::as_str);
            writeln!(
                table,
                "{:24} {plain:10} {unique}",
                text.escape_debug().to_string().chars().take(24).collect::<String>()
            )
            .unwrap();
        }
        insta::assert_snapshot!(table);
    }

    proptest! {
        #[test]
        fn whatever_is_said_names_are_names_and_never_shared(text in any::<String>(), one in ".{1,40}", other in ".{1,40}") {
            let derived = derive(&text, &one);
            for name in derived.plain.iter().chain([&derived.unique]) {
                prop_assert!(name.as_str().parse::<UserName>().is_ok());
                prop_assert!(!name.as_str().contains(['/', '.']) && !name.as_str().is_empty());
                prop_assert!(!name.is_reserved());
            }
            prop_assert_eq!(&derive(&text, &one), &derived, "the same subject has the same name again");
            if one != other {
                let second = derive(&text, &other).unique;
                prop_assert!(second != derived.unique);
                prop_assert!(second.skeleton() != derived.unique.skeleton(), "nor do they look alike");
            }
        }

        #[test]
        fn names_that_are_names_stay_as_they_are(text in "[a-z][a-z0-9]{0,30}[a-z0-9]") {
            let name = text.parse::<UserName>().unwrap();
            prop_assert_eq!(derive(&text, "1").plain, (!name.is_reserved()).then_some(name));
        }
    }
}

//! `gvm helper pam`: asks PAM whether a password opens a login of this host, and whether the login may be used.
//!
//! The question is one line of JSON on standard input, the answer one on standard output
//! ([`crate::model::login::pam`]). The library is found while running, so that a host without PAM needs none.
//!
//! `unsafe` because PAM is a C library: its functions are looked up by name, and it calls back with pointers of its own.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::ptr;

use libloading::Library;
use nix::libc;

use crate::model::login::pam::{MAX_QUESTION, PamAnswer, PamQuestion};

/// The library's name on every Linux.
const LIBRARY: &str = "libpam.so.0";
/// Nobody is asked for a new password, and nothing is printed.
const SILENT: c_int = 0x8000;
/// A login without a password opens nothing.
const NO_EMPTY: c_int = 0x0001;
/// `PAM_USER`: the login, as the modules call it in the end.
const ITEM_USER: c_int = 2;
/// A prompt whose answer is not to be seen: the password.
const PROMPT_HIDDEN: c_int = 1;
/// A prompt whose answer may be seen: nothing that we know.
const PROMPT_SEEN: c_int = 2;
const SUCCESS: c_int = 0;
const BUFFER_ERROR: c_int = 5;
const CONVERSATION_ERROR: c_int = 19;
/// "No", in its ways: denied, wrong, too little, unknown, too often, password or account expired.
const REFUSALS: [c_int; 7] = [6, 7, 8, 10, 11, 12, 13];
/// Messages of one call that are heard.
const MAX_MESSAGES: usize = 32;

/// PAM's handle.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

type Converse = unsafe extern "C" fn(c_int, *const *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Converse,
    data: *mut c_void,
}

/// What the conversation may give away: once.
struct Password(Option<CString>);

type Start = unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *mut *mut Handle) -> c_int;
type StartIn =
    unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *const c_char, *mut *mut Handle) -> c_int;
type Ask = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type Item = unsafe extern "C" fn(*const Handle, c_int, *mut *const c_void) -> c_int;

/// Reads the question, asks, answers. The exit code says whether there was an answer.
pub fn run() -> ExitCode {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(MAX_QUESTION).read_to_end(&mut text);
    let question = read.ok().and_then(|_| serde_json::from_slice::<PamQuestion>(&text).ok());
    let answer = match question {
        Some(question) => judge(question).unwrap_or_else(|why| PamAnswer::Failed { why }),
        None => PamAnswer::Failed { why: "there is no question on standard input".to_owned() },
    };
    let is_answer = !matches!(answer, PamAnswer::Failed { .. });
    let line = serde_json::to_string(&answer).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // A line of its own, whatever modules have printed.
    let is_told = writeln!(out, "\n{line}").and_then(|()| out.flush()).is_ok();
    if is_answer && is_told { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn judge(question: PamQuestion) -> Result<PamAnswer, String> {
    let c_text = |bytes: &[u8]| CString::new(bytes).map_err(|_| "the question has a NUL in it".to_owned());
    let (service, user) = (c_text(question.service.as_bytes())?, c_text(question.user.as_bytes())?);
    let confdir = question.confdir.map(|folder| c_text(folder.as_os_str().as_bytes())).transpose()?;
    let mut password = Password(Some(c_text(question.password.as_bytes())?));
    // SAFETY: loading runs the library's initialisers; this process does nothing else and has no other thread.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|e| format!("{LIBRARY} cannot be loaded: {e}"))?;
    let missing = |e: libloading::Error| format!("{LIBRARY} lacks a function: {e}");
    // SAFETY: the types are those of pam_appl.h; the symbols do not outlive the library.
    let (authenticate, account, end, item) = unsafe {
        (
            *library.get::<Ask>(b"pam_authenticate\0").map_err(missing)?,
            *library.get::<Ask>(b"pam_acct_mgmt\0").map_err(missing)?,
            *library.get::<Ask>(b"pam_end\0").map_err(missing)?,
            *library.get::<Item>(b"pam_get_item\0").map_err(missing)?,
        )
    };
    let conversation = Conversation { converse: answer, data: ptr::from_mut(&mut password).cast() };
    let mut handle: *mut Handle = ptr::null_mut();
    // SAFETY: all pointers are to values that live until pam_end; PAM copies the texts.
    let started = unsafe {
        match &confdir {
            Some(folder) => {
                let start = library.get::<StartIn>(b"pam_start_confdir\0").map_err(missing)?;
                start(service.as_ptr(), user.as_ptr(), &raw const conversation, folder.as_ptr(), &raw mut handle)
            }
            None => {
                let start = library.get::<Start>(b"pam_start\0").map_err(missing)?;
                start(service.as_ptr(), user.as_ptr(), &raw const conversation, &raw mut handle)
            }
        }
    };
    if started != SUCCESS || handle.is_null() {
        return Err(format!("PAM does not start (code {started})"));
    }
    // SAFETY: the handle is the one that was started.
    let mut code = unsafe { authenticate(handle, SILENT | NO_EMPTY) };
    if code == SUCCESS {
        // SAFETY: as above.
        code = unsafe { account(handle, SILENT | NO_EMPTY) };
    }
    let mut name: *const c_void = ptr::null();
    // SAFETY: as above; the text belongs to the handle and is copied before it ends.
    let name = unsafe {
        let is_there = code == SUCCESS && item(handle, ITEM_USER, &raw mut name) == SUCCESS && !name.is_null();
        is_there.then(|| CStr::from_ptr(name.cast()).to_string_lossy().into_owned())
    };
    // SAFETY: the handle is not used after this.
    unsafe { end(handle, code) };
    match (code, name) {
        (SUCCESS, Some(user)) => Ok(PamAnswer::Accepted { user }),
        (SUCCESS, None) => Err("PAM does not say whose login it is".to_owned()),
        (code, _) if REFUSALS.contains(&code) => Ok(PamAnswer::Refused { code }),
        (code, _) => Err(format!("PAM ends with code {code}; is the service's file sound?")),
    }
}

/// Answers the modules: the password to the first hidden prompt, nothing to what is only said, an error to whatever asks
/// for more - a second factor, a new password.
unsafe extern "C" fn answer(
    count: c_int,
    messages: *const *const Message,
    responses: *mut *mut Response,
    data: *mut c_void,
) -> c_int {
    let Some(count) = usize::try_from(count).ok().filter(|count| (1..=MAX_MESSAGES).contains(count)) else {
        return CONVERSATION_ERROR;
    };
    if messages.is_null() || responses.is_null() || data.is_null() {
        return CONVERSATION_ERROR;
    }
    // SAFETY: PAM frees what it is given by free(3), so it comes from calloc(3).
    let list: *mut Response = unsafe { libc::calloc(count, size_of::<Response>()) }.cast();
    if list.is_null() {
        return BUFFER_ERROR;
    }
    // SAFETY: the data is the password of `judge`, which outlives the handle; nobody else has it while PAM calls.
    let password = unsafe { &mut *data.cast::<Password>() };
    for index in 0..count {
        // SAFETY: Linux-PAM gives an array of so many pointers to messages.
        let style = unsafe { (**messages.add(index)).style };
        let text = match style {
            PROMPT_HIDDEN => password.0.take(),
            PROMPT_SEEN => None,
            _ => continue,
        };
        // SAFETY: the text ends with a NUL; the copy is PAM's to free. The list has so many places.
        let is_answered = unsafe {
            let copy = text.map_or(ptr::null_mut(), |text| libc::strdup(text.as_ptr()));
            (*list.add(index)).text = copy;
            !copy.is_null()
        };
        if !is_answered {
            // SAFETY: nothing in it was handed out; texts in it are PAM's only where the list is.
            unsafe {
                for given in 0..index {
                    libc::free((*list.add(given)).text.cast());
                }
                libc::free(list.cast());
            }
            return CONVERSATION_ERROR;
        }
    }
    // SAFETY: the place for the answer is PAM's.
    unsafe { *responses = list };
    SUCCESS
}

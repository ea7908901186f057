//! A browser as far as logins need one: follows redirects, keeps cookies, fills in forms.

use std::collections::BTreeMap;

use reqwest::{Client, Response, Url, header};

/// It types one login into whatever asks for one.
pub struct Browser {
    http: Client,
    cookies: BTreeMap<String, String>,
    login: String,
}

/// Where it ended.
pub enum Ended {
    /// It was sent to an address of the manager.
    SentTo(Url),
    /// At a page without a form.
    Page(String),
}

impl Browser {
    pub fn new(login: &str) -> Self {
        let http = Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap();
        Self { http, cookies: BTreeMap::new(), login: login.to_owned() }
    }

    /// Goes there and does what the pages want until there is nothing more to do.
    pub async fn go(&mut self, address: &str, ours: &str) -> Ended {
        let mut url: Url = address.parse().unwrap();
        let mut form: Option<Vec<(String, String)>> = None;
        for _ in 0..20 {
            if url.as_str().starts_with(ours) {
                return Ended::SentTo(url);
            }
            let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let request = match form.take() {
                Some(fields) => self.http.post(url.clone()).form(&fields),
                None => self.http.get(url.clone()),
            };
            let answer = request.header(header::COOKIE, cookies.join("; ")).send().await.unwrap();
            self.keep(&answer);
            if let Some(to) = answer.headers().get(header::LOCATION) {
                url = url.join(to.to_str().unwrap()).unwrap();
                continue;
            }
            let page = answer.text().await.unwrap();
            let Some((action, fields)) = self.fill(&page) else { return Ended::Page(page) };
            url = url.join(&action).unwrap();
            form = Some(fields);
        }
        panic!("the browser goes round in circles at {url}");
    }

    fn keep(&mut self, answer: &Response) {
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            if value.is_empty() {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    /// The first form of a page, filled in.
    fn fill(&self, page: &str) -> Option<(String, Vec<(String, String)>)> {
        let form = page.split("<form").nth(1)?.split("</form>").next()?;
        let attribute = |tag: &str, name: &str| -> Option<String> {
            Some(tag.split(&format!("{name}=\"")).nth(1)?.split('"').next()?.to_owned())
        };
        let action = attribute(form.split('>').next()?, "action")?;
        let mut fields = Vec::new();
        for tag in form.split("<input").skip(1).map(|tag| tag.split('>').next().unwrap()) {
            let Some(name) = attribute(tag, "name") else { continue };
            let value = match name.as_str() {
                "login" => self.login.clone(),
                "password" => "any".to_owned(),
                _ => attribute(tag, "value").unwrap_or_default(),
            };
            fields.push((name, value));
        }
        Some((action, fields))
    }
}

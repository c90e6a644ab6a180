//! Profiles of the AWS tools: `~/.aws/config` and `~/.aws/credentials`, or the files that `AWS_CONFIG_FILE` and
//! `AWS_SHARED_CREDENTIALS_FILE` name.
//!
//! Understood are keys (`aws_access_key_id`, `aws_secret_access_key`, `aws_session_token`), a web identity
//! (`web_identity_token_file` with `role_arn`), `region`, and `endpoint_url`, also that of `s3` alone. What needs
//! another program or service first (single sign-on, `credential_process`, a role taken from another profile) is an
//! error that says how to get keys from it.

use std::collections::BTreeMap;
use std::path::Path;

use object_store::aws::AmazonS3ConfigKey as Key;

use crate::error::{Error, Result};
use crate::store::remote::provider::{Sources, file_of};

/// What the two files are called among the sources.
const CONFIG: &str = "config";
const CREDENTIALS: &str = "credentials";

/// Settings that say that credentials come from somewhere that is not read here.
const ELSEWHERE: [&str; 6] =
    ["sso_session", "sso_start_url", "credential_process", "source_profile", "credential_source", "login_session"];

/// The sources with the files as they are now.
pub(crate) fn with_files(sources: Sources) -> Sources {
    let config = file_of("AWS_CONFIG_FILE", ".aws/config");
    let credentials = file_of("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
    sources.with_file(CONFIG, config).with_file(CREDENTIALS, credentials)
}

/// Sections of a file: settings by section and name; a setting below another one is `outer.inner`.
type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// What the files say under one name.
#[derive(Debug)]
pub(crate) struct Profile {
    name: String,
    /// Whether somebody asked for it.
    named: bool,
    settings: BTreeMap<String, String>,
    endpoint: Option<String>,
}

impl Profile {
    /// The profile of that name, or of `AWS_PROFILE`, or `default`. One that is named must exist, if it is by `name` or
    /// its credentials are needed.
    pub(crate) fn load(name: Option<&str>, needed: bool, sources: &Sources) -> Result<Option<Self>> {
        let variable = || ["aws_profile", "aws_default_profile"].iter().find_map(|name| sources.variable(name));
        let name_given = name.is_some();
        let asked = name.or_else(variable);
        let name = asked.unwrap_or("default");
        let [config, credentials] = [CONFIG, CREDENTIALS].map(|file| sections(sources.text(file).unwrap_or_default()));
        let section = if name == "default" && !config.contains_key("profile default") {
            "default".to_owned()
        } else {
            format!("profile {name}")
        };
        let mut settings = config.get(&section).cloned().unwrap_or_default();
        // Of the two files, the one of credentials wins.
        settings.extend(credentials.get(name).cloned().unwrap_or_default());
        if !config.contains_key(&section) && !credentials.contains_key(name) {
            let Some(asked) = asked.filter(|_| needed || name_given) else { return Ok(None) };
            let known = config
                .keys()
                .filter_map(|key| key.strip_prefix("profile ").or_else(|| (key == "default").then_some(key)));
            let mut known: Vec<&str> = known.chain(credentials.keys().map(String::as_str)).collect();
            known.sort_unstable();
            known.dedup();
            let files = [CONFIG, CREDENTIALS].map(|file| sources.path(file).unwrap_or(Path::new(file)).display());
            return Err(Error::Argument(format!(
                "expected the profile {asked:?} in {} or {}, found {}\nhint: check AWS_PROFILE, or \
                 storage_options={{\"profile\": ...}}",
                files[0],
                files[1],
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            )));
        }
        let endpoint = endpoint(&settings, &config, sources);
        Ok(Some(Self { name: name.to_owned(), named: asked.is_some(), settings, endpoint }))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Region and endpoint.
    pub(crate) fn place(&self) -> Vec<(Key, String)> {
        let region = self.get("region").map(|region| (Key::Region, region.to_owned()));
        region.into_iter().chain(self.endpoint.clone().map(|url| (Key::Endpoint, url))).collect()
    }

    /// What to sign with; nothing if the profile says nothing about it.
    pub(crate) fn credentials(&self) -> Result<Vec<(Key, String)>> {
        let pick = |wanted: &[(Key, &str)]| {
            let found = wanted.iter().filter_map(|(key, name)| Some((*key, self.get(name)?.to_owned())));
            found.collect::<Vec<_>>()
        };
        match (self.get("aws_access_key_id"), self.get("aws_secret_access_key")) {
            (Some(_), Some(_)) => {
                return Ok(pick(&[
                    (Key::AccessKeyId, "aws_access_key_id"),
                    (Key::SecretAccessKey, "aws_secret_access_key"),
                    (Key::Token, "aws_session_token"),
                ]));
            }
            (None, None) => {}
            (key, _) => {
                let (has, lacks) = if key.is_some() { ("an access key", "secret") } else { ("a secret", "access key") };
                return Err(Error::Argument(format!("the AWS profile {:?} has {has} but no {lacks}", self.name)));
            }
        }
        if self.get("web_identity_token_file").is_some() {
            return Ok(pick(&[
                (Key::WebIdentityTokenFile, "web_identity_token_file"),
                (Key::RoleArn, "role_arn"),
                (Key::RoleSessionName, "role_session_name"),
            ]));
        }
        match ELSEWHERE.iter().find(|name| self.get(name).is_some()) {
            Some(mechanism) => Err(Error::Argument(format!(
                "the AWS profile {:?} gets its credentials by {mechanism}, which needs the AWS tools\nhint: run eval \
                 \"$(aws configure export-credentials --profile {} --format env)\" and start again",
                self.name, self.name
            ))),
            None if self.named && self.get("role_arn").is_some() => Err(Error::Argument(format!(
                "the AWS profile {:?} names a role but nothing to take it with",
                self.name
            ))),
            None => Ok(Vec::new()),
        }
    }
}

/// The endpoint for S3: its own before that of all services, as the AWS tools have it.
fn endpoint(settings: &BTreeMap<String, String>, config: &Sections, sources: &Sources) -> Option<String> {
    if sources.variable("aws_ignore_configured_endpoint_urls").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return None;
    }
    let services = settings.get("services").and_then(|name| config.get(&format!("services {name}")));
    let own = services.and_then(|services| services.get("s3.endpoint_url"));
    own.or_else(|| settings.get("s3.endpoint_url")).or_else(|| settings.get("endpoint_url")).cloned()
}

/// Reads a file: `[section]`, `name = value`, settings below one that has no value, and comments.
fn sections(text: &str) -> Sections {
    let mut sections = Sections::new();
    let (mut section, mut outer) = (None, String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            let name = name.replace(['"', '\''], "");
            sections.entry(name.clone()).or_default();
            section = Some(name);
            outer.clear();
            continue;
        }
        let Some(settings) = section.as_ref().and_then(|name| sections.get_mut(name)) else { continue };
        let Some((name, value)) = trimmed.split_once('=') else { continue };
        let (name, value) = (name.trim().to_ascii_lowercase(), without_comment(value));
        if line.starts_with([' ', '\t']) && !outer.is_empty() {
            settings.insert(format!("{outer}.{name}"), value.to_owned());
        } else if value.is_empty() {
            outer = name;
        } else {
            outer.clear();
            settings.insert(name, value.to_owned());
        }
    }
    sections
}

/// A value without what follows ` #` or ` ;`.
fn without_comment(value: &str) -> &str {
    let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min().unwrap_or(value.len());
    value[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(name: &str, config: &str) -> Result<Option<Profile>> {
        Profile::load(Some(name), true, &Sources::of(&[], &[(CONFIG, config)]))
    }

    #[test]
    fn a_file_is_read_as_the_aws_tools_do() {
        let text = "# a\n[default]\nregion = eu-west-1 # here\n\n[profile  two]\nREGION=us-west-2\ns3 =\n  endpoint_url = \
                    http://a\n  addressing_style = path\noutput = json\n; b\n[profile \"a b\"]\nregion = x;y\n";
        let found = sections(text);
        assert_eq!(found["default"]["region"], "eu-west-1");
        assert_eq!(found["profile two"]["region"], "us-west-2");
        assert_eq!(found["profile two"]["s3.endpoint_url"], "http://a");
        assert_eq!(found["profile two"]["output"], "json");
        assert_eq!(found["profile a b"]["region"], "x;y");
        assert!(sections("no section = 1\n[a\nb").contains_key("a"));
    }

    #[test]
    fn the_endpoint_of_s3_goes_before_that_of_all() {
        let text = "[profile a]\nendpoint_url = http://all\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = http://s3\n\
                    [profile b]\nendpoint_url = http://all\n";
        for (name, wanted) in [("a", "http://s3"), ("b", "http://all")] {
            let profile = load(name, text).expect(name).expect(name);
            assert_eq!(profile.place(), [(Key::Endpoint, wanted.to_owned())], "{name}");
        }
        let ignoring = [("aws_ignore_configured_endpoint_urls", "true")];
        let profile =
            Profile::load(Some("a"), true, &Sources::of(&ignoring, &[(CONFIG, text)])).expect("a").expect("a");
        assert!(profile.place().is_empty());
    }

    #[test]
    fn what_needs_the_aws_tools_says_what_to_run() {
        for line in ["sso_session = x", "credential_process = x", "role_arn = r\nsource_profile = y"] {
            let profile = load("p", &format!("[profile p]\n{line}\n")).expect("file").expect("profile");
            let message = profile.credentials().expect_err(line).to_string();
            assert!(message.contains("export-credentials --profile p"), "{message}");
        }
        let profile = load("p", "[profile p]\nweb_identity_token_file = /t\nrole_arn = r\n").expect("file").expect("p");
        let wanted = [(Key::WebIdentityTokenFile, "/t".to_owned()), (Key::RoleArn, "r".to_owned())];
        assert_eq!(profile.credentials().expect("identity"), wanted);
        let half = load("p", "[profile p]\naws_access_key_id = x\n").expect("file").expect("p");
        assert!(half.credentials().expect_err("no secret").to_string().contains("no secret"));
    }
}

//! Containers of Azure Blob Storage, also through the addresses of Data Lake Storage.
//!
//! Settings are the `AZURE_*` variables, and above them `storage_options`: the names of the `object_store` crate with
//! and without `azure_` or `azure_storage_` (`account_name`, `account_key`, `sas_token`, `client_id`, `client_secret`,
//! `tenant_id`, `bearer_token`, `endpoint`, `use_azure_cli`, `skip_signature`, ...), and `connection_string`, `anon`
//! and `credential` as other libraries call them. The emulator is reached with `use_emulator`, a connection string, or
//! its account `devstoreaccount1` and an `endpoint`. An account key, a shared access signature and an endpoint belong to
//! one account: those of variables are left out where another account is read.

use std::collections::BTreeMap;

use object_store::ClientConfigKey;
use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};

use crate::error::{Error, Result};
use crate::store::remote::backend::Bucket;
use crate::store::remote::observe::ObservingConnector;
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings::{
    self, CONNECTION, Options, client_options, is_client_flag, no_retries, server_url,
};

const NAMES: &[&str] = &[
    "account_key",
    "account_name",
    "anon",
    "authority_host",
    "bearer_token",
    "client_id",
    "client_secret",
    "connection_string",
    "credential",
    "credential_type",
    "encryption_key",
    "endpoint",
    "endpoint_url",
    "federated_token_file",
    "msi_endpoint",
    "msi_resource_id",
    "object_id",
    "sas_token",
    "skip_signature",
    "tenant_id",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
];

/// Account and key that every emulator has: they are published, and no secret.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
const EMULATOR_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_URL: &str = "http://127.0.0.1:10000";

/// A setting: one of the library's, or of our own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Library(Key),
    ConnectionString,
    /// An account key or a shared access signature.
    Credential,
}

impl settings::Key for Setting {
    const STORE: &'static str = "azure";
    const PREFIX: &'static str = "azure_";
    const NAMES: &'static [&'static [&'static str]] = &[NAMES, CONNECTION];

    fn parse(name: &str, short: &str) -> Option<Self> {
        Some(Self::Library(match short.strip_prefix("storage_").unwrap_or(short) {
            "connection_string" => return Some(Self::ConnectionString),
            "credential" => return Some(Self::Credential),
            "anon" => Key::SkipSignature,
            "endpoint_url" | "account_url" => Key::Endpoint,
            "account" => Key::AccountName,
            "key" => Key::AccessKey,
            other => name.parse().or_else(|_| other.parse()).ok()?,
        }))
    }

    fn is_flag(&self) -> bool {
        match self {
            Self::Library(Key::Client(key)) => is_client_flag(*key),
            Self::Library(key) => matches!(
                key,
                Key::SkipSignature | Key::UseEmulator | Key::UseAzureCli | Key::UseFabricEndpoint | Key::DisableTagging
            ),
            Self::ConnectionString | Self::Credential => false,
        }
    }

    fn is_secret(&self) -> bool {
        let Self::Library(key) = self else { return true };
        matches!(
            key,
            Key::AccessKey
                | Key::ClientSecret
                | Key::SasKey
                | Key::Token
                | Key::FabricSessionToken
                | Key::EncryptionKey
                | Key::Client(ClientConfigKey::ProxyUrl)
        )
    }

    fn in_url(&self) -> Option<&'static str> {
        (*self == Self::Library(Key::ContainerName)).then_some("the container")
    }
}

/// A container.
#[derive(Debug)]
pub struct Azure {
    root: String,
    container: String,
    /// What the URL says of the account: its name, and whether it is one of Fabric.
    account: Option<(String, bool)>,
    options: Options<Setting>,
}

impl Azure {
    /// A container by what stands in a URL between the scheme and the first slash: `container`, or
    /// `container@account.dfs.core.windows.net`.
    pub fn new(scheme: &str, authority: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let wrong = |what: &str| {
            Error::Argument(format!(
                "\"{scheme}://{authority}\": expected {scheme}://container/path or \
                 {scheme}://container@account.dfs.core.windows.net/path, found {what}"
            ))
        };
        let (container, account) = match authority.split_once('@') {
            None => (authority, None),
            Some((container, host)) => {
                let known = |end: &str| host.strip_suffix(end).filter(|name| !name.is_empty() && !name.contains('.'));
                let azure = [".dfs.core.windows.net", ".blob.core.windows.net"].into_iter().find_map(known);
                let fabric = [".dfs.fabric.microsoft.com", ".blob.fabric.microsoft.com"].into_iter().find_map(known);
                let account = azure.map(|name| (name, false)).or(fabric.map(|name| (name, true)));
                let (name, is_fabric) = account.ok_or_else(|| wrong(&format!("the host {host:?}")))?;
                (container, Some((name.to_owned(), is_fabric)))
            }
        };
        if container.is_empty() || !container.bytes().all(|b| b.is_ascii_alphanumeric() || b"-$_".contains(&b)) {
            return Err(wrong(&format!("the container name {container:?}")));
        }
        let root = format!("{scheme}://{authority}");
        Ok(Self { root, container: container.to_owned(), account, options: Options::parse(options)? })
    }

    /// Settings of the library, of two for one key the later wins.
    fn settings(&self, sources: &Sources) -> Result<Vec<(Key, String)>> {
        let mut given = Vec::new();
        for (setting, value) in self.options.pairs() {
            match setting {
                Setting::Library(key) => given.push((key, value.to_owned())),
                Setting::ConnectionString => {
                    let parts = connection_string(value).ok_or_else(|| settings::wrong_value(OPTION, PARTS))?;
                    given.extend(parts);
                }
                Setting::Credential if value.contains("sig=") => given.push((Key::SasKey, value.to_owned())),
                Setting::Credential => given.push((Key::AccessKey, value.to_owned())),
            }
        }
        self.check_account()?;
        let own_login = given.iter().any(|(key, _)| is_login(*key));
        let mut variables: Vec<(Key, String)> =
            sources.all().filter_map(|(name, value)| Some((variable(name)?, value.to_owned()))).collect();
        let mut string = match sources.variable("azure_storage_connection_string") {
            Some(text) => connection_string(text)
                .ok_or_else(|| Error::Argument(format!("AZURE_STORAGE_CONNECTION_STRING must be {PARTS}")))?,
            None => Vec::new(),
        };
        let of_url = self.account.as_ref().map(|(name, _)| name.as_str());
        if let Some(account) = of_url.or_else(|| account(&given)).or_else(|| account(&variables)).map(str::to_owned) {
            leave_out_other(&mut variables, &account);
            leave_out_other(&mut string, &account);
        }
        // Below the other variables: each may say something else on its own.
        let mut settings = string;
        settings.extend(variables);
        settings.retain(|(key, _)| !(own_login && is_login(*key)));
        settings.extend(given);
        if let Some((name, is_fabric)) = &self.account {
            settings.push((Key::AccountName, name.clone()));
            if *is_fabric {
                settings.push((Key::UseFabricEndpoint, "true".to_owned()));
            }
        }
        add_emulator(&mut settings, sources);
        Ok(settings)
    }

    /// Options are for the account that the URL names, and name no other themselves.
    fn check_account(&self) -> Result<()> {
        let of_url = self.account.as_ref().map(|(name, _)| (name.as_str(), "the URL"));
        let of_option =
            self.options.get(Setting::Library(Key::AccountName)).map(|name| (name, "the option account_name"));
        let of_string = self.options.get(Setting::ConnectionString).and_then(connection_string);
        let of_string = of_string.as_deref().and_then(account).map(|name| (name, "the connection_string"));
        let all: Vec<(&str, &str)> = [of_url, of_option, of_string].into_iter().flatten().collect();
        match all.iter().find(|(name, _)| *name != all[0].0) {
            Some((other, place)) => {
                let (name, first) = all[0];
                Err(Error::Argument(format!(
                    "{}: expected one storage account, found {name:?} in {first} and {other:?} in {place}\nhint: leave one \
                     of them out",
                    self.root
                )))
            }
            None => Ok(()),
        }
    }

    /// Where requests go, and what follows the endpoint before the container.
    fn endpoint(&self, settings: &[(Key, String)]) -> Result<String> {
        if let Some(url) = last(settings, Key::Endpoint) {
            return Ok(server_url("Azure endpoint", url)?.trim_end_matches('/').to_owned());
        }
        let account = last(settings, Key::AccountName).ok_or_else(|| {
            Error::Argument(format!(
                "{}: expected the storage account that the container belongs to, found none\nhint: pass \
                 storage_options={{\"account_name\": ...}}, set AZURE_STORAGE_ACCOUNT_NAME, or write \
                 abfss://container@account.dfs.core.windows.net/path",
                self.root
            ))
        })?;
        let host = match last(settings, Key::UseFabricEndpoint) {
            Some("true") => "blob.fabric.microsoft.com",
            _ => "blob.core.windows.net",
        };
        Ok(format!("https://{account}.{host}"))
    }
}

fn last(settings: &[(Key, String)], wanted: Key) -> Option<&str> {
    settings.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str())
}

/// The account that settings of one place name.
fn account(settings: &[(Key, String)]) -> Option<&str> {
    let emulator = || (last(settings, Key::UseEmulator) == Some("true")).then_some(EMULATOR_ACCOUNT);
    last(settings, Key::AccountName).or_else(emulator)
}

/// Leaves out what belongs to the account that settings of one place name, if that is not the one that is read.
fn leave_out_other(settings: &mut Vec<(Key, String)>, read: &str) {
    if account(settings).is_some_and(|named| named != read) {
        // A login of a person or service may be good for several accounts.
        let of_account = [Key::AccountName, Key::AccessKey, Key::SasKey, Key::Endpoint, Key::UseEmulator];
        settings.retain(|(key, _)| !of_account.contains(key));
    }
}

/// What a variable sets, by its name in lower case.
fn variable(name: &str) -> Option<Key> {
    let key = match name {
        "azure_storage_account" => Key::AccountName,
        "azure_storage_key" => Key::AccessKey,
        "identity_endpoint" => Key::MsiEndpoint,
        _ => name.parse().ok()?,
    };
    (!matches!(key, Key::ContainerName | Key::Client(ClientConfigKey::Timeout))).then_some(key)
}

/// Whether a setting is what requests are signed with.
fn is_login(key: Key) -> bool {
    use Key as K;
    [K::AccessKey, K::SasKey, K::Token, K::ClientSecret, K::FederatedTokenFile, K::UseAzureCli, K::SkipSignature]
        .contains(&key)
}

/// What the emulator needs, where it is meant.
fn add_emulator(settings: &mut Vec<(Key, String)>, sources: &Sources) {
    let meant = last(settings, Key::UseEmulator) == Some("true");
    settings.retain(|(key, _)| *key != Key::UseEmulator);
    if meant {
        if last(settings, Key::AccountName).is_none() {
            settings.push((Key::AccountName, EMULATOR_ACCOUNT.to_owned()));
        }
        if last(settings, Key::Endpoint).is_none() {
            let url = sources.variable("azurite_blob_storage_url").unwrap_or(EMULATOR_URL);
            settings.push((Key::Endpoint, url.to_owned()));
        }
    }
    let is_emulator = meant || last(settings, Key::AccountName) == Some(EMULATOR_ACCOUNT);
    if let (true, Some(account), Some(url)) =
        (is_emulator, last(settings, Key::AccountName), last(settings, Key::Endpoint))
    {
        // Its account is part of the path.
        let url = url.trim_end_matches('/');
        if url.split_once("://").is_some_and(|(_, rest)| !rest.contains('/')) {
            let url = format!("{url}/{account}");
            settings.push((Key::Endpoint, url));
        }
        if last(settings, Key::AccountName) == Some(EMULATOR_ACCOUNT) && !settings.iter().any(|(key, _)| is_login(*key))
        {
            settings.push((Key::AccessKey, EMULATOR_KEY.to_owned()));
        }
    }
}

/// The option that holds a connection string, and what that must be.
const OPTION: &str = "connection_string";
const PARTS: &str = "parts of the form name=value with a ; between them";

/// What a connection string says, `AccountName=...;AccountKey=...;...`; `None` if it is none.
fn connection_string(text: &str) -> Option<Vec<(Key, String)>> {
    let mut parts = BTreeMap::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=')?;
        parts.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    if parts.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Some(vec![(Key::UseEmulator, "true".to_owned())]);
    }
    let mut settings = Vec::new();
    let names = [
        ("accountname", Key::AccountName),
        ("accountkey", Key::AccessKey),
        ("sharedaccesssignature", Key::SasKey),
        ("blobendpoint", Key::Endpoint),
    ];
    for (name, key) in names {
        settings.extend(parts.get(name).map(|value| (key, value.clone())));
    }
    if let (None, Some(account), Some(suffix)) =
        (parts.get("blobendpoint"), parts.get("accountname"), parts.get("endpointsuffix"))
    {
        let scheme = parts.get("defaultendpointsprotocol").map_or("https", String::as_str);
        settings.push((Key::Endpoint, format!("{scheme}://{account}.blob.{suffix}")));
    }
    Some(settings)
}

impl Provider for Azure {
    fn root(&self) -> &str {
        &self.root
    }

    fn policy(&self) -> Policy {
        self.options.policy
    }

    fn advice(&self) -> Advice {
        Advice {
            denied: "check AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (or storage_options), and whether they \
                     may read this container"
                .into(),
            no_credentials: "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, pass \
                             storage_options={\"use_azure_cli\": \"true\"} for the login of az, or {\"anon\": \"true\"} \
                             for a public container"
                .into(),
            expired: "the token has expired: renew it".into(),
            no_root: "check the container's name, the account_name and the endpoint".into(),
            unreached: "check the account_name, the endpoint, and whether this machine needs a proxy (HTTPS_PROXY)".into(),
            elsewhere: "check the account_name and the endpoint".into(),
        }
    }

    fn sources(&self) -> Sources {
        Sources::variables(|name| {
            name.starts_with("AZURE_") || matches!(name, "AZURITE_BLOB_STORAGE_URL" | "IDENTITY_ENDPOINT")
        })
    }

    fn connect(&self, sources: &Sources) -> Result<Connection> {
        let settings = self.settings(sources)?;
        let endpoint = self.endpoint(&settings)?;
        let mut builder = MicrosoftAzureBuilder::new().with_container_name(&self.container);
        let mut connection = Vec::new();
        for (key, value) in &settings {
            match key {
                Key::Client(key) => connection.push((*key, value.as_str())),
                key => builder = builder.with_config(*key, value),
            }
        }
        if last(&settings, Key::AccountName).is_none() {
            // Only an endpoint was given, whose host begins with the account's name.
            let host = endpoint.split_once("://").map_or("", |(_, host)| host);
            builder = builder.with_account(host.split(['.', ':', '/']).next().unwrap_or_default());
        }
        let policy = self.options.policy;
        let secret = |(key, _): &&(Key, String)| settings::Key::is_secret(&Setting::Library(*key));
        let secrets = Secrets::new(settings.iter().filter(secret).map(|(_, value)| value.as_str()));
        let store = builder
            .with_endpoint(endpoint.clone())
            .with_client_options(client_options(&policy, endpoint.starts_with("http://"), connection))
            .with_retry(no_retries(&policy))
            .with_http_connector(ObservingConnector)
            .build()
            .map_err(|e| Error::Argument(secrets.hide(format!("{}: the settings cannot be used: {e}", self.root))))?;
        Ok(Connection { backend: Box::new(Bucket::skipping_exact(store)), endpoint: Some(endpoint), secrets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::settings::map;

    fn parse(authority: &str, pairs: &[(&str, &str)]) -> Result<Azure> {
        Azure::new("az", authority, &map(pairs))
    }

    fn value(store: &Azure, sources: &Sources, key: Key) -> Option<String> {
        last(&store.settings(sources).expect("settings"), key).map(str::to_owned)
    }

    fn endpoint(store: &Azure, sources: &Sources) -> Option<String> {
        store.connect(sources).expect("client").endpoint
    }

    #[test]
    fn the_account_is_found_where_it_stands() {
        let none = Sources::default();
        let key = ("account_key", EMULATOR_KEY);
        let store = parse("data", &[("account_name", "mine"), key]).expect("options");
        assert_eq!(endpoint(&store, &none).as_deref(), Some("https://mine.blob.core.windows.net"));
        let store = parse("data@yours.dfs.core.windows.net", &[key]).expect("options");
        assert_eq!(endpoint(&store, &none).as_deref(), Some("https://yours.blob.core.windows.net"));
        assert_eq!((store.root(), store.container.as_str()), ("az://data@yours.dfs.core.windows.net", "data"));
        let store = parse("data", &[key]).expect("options");
        let variables = Sources::of(&[("azure_storage_account_name", "theirs")], &[]);
        assert_eq!(endpoint(&store, &variables).as_deref(), Some("https://theirs.blob.core.windows.net"));
        let message = store.connect(&none).map(drop).expect_err("no account").to_string();
        assert!(message.contains("account_name") && message.contains("az://data"), "{message}");
        for wrong in ["", "a/b", "data@elsewhere.org", "data@.dfs.core.windows.net", "a.b"] {
            assert!(parse(wrong, &[]).is_err_and(|e| e.to_string().contains("expected az://container")), "{wrong}");
        }
    }

    #[test]
    fn spellings_of_one_setting_are_one() {
        for name in ["account_key", "azure_storage_account_key", "AZURE_STORAGE_KEY", "access_key", "credential"] {
            let store = parse("data", &[("account", "mine"), (name, EMULATOR_KEY)]).expect(name);
            assert_eq!(value(&store, &Sources::default(), Key::AccessKey).as_deref(), Some(EMULATOR_KEY), "{name}");
        }
        for name in ["sas_token", "azure_storage_sas_token", "credential"] {
            let store = parse("data", &[("account_name", "mine"), (name, "sv=1&sig=hunter2")]).expect(name);
            let found = value(&store, &Sources::default(), Key::SasKey);
            assert_eq!(found.as_deref(), Some("sv=1&sig=hunter2"), "{name}");
        }
        assert!(parse("data", &[("container_name", "b")]).is_err_and(|e| e.to_string().contains("part of the URL")));
        assert!(parse("data", &[("acount_name", "b")]).is_err_and(|e| e.to_string().contains("\"account_name\"")));
    }

    #[test]
    fn the_emulator_is_reached_in_each_usual_way() {
        let none = Sources::default();
        let place = "http://127.0.0.1:9/devstoreaccount1";
        let full = format!(
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={EMULATOR_KEY};\
                            BlobEndpoint={place};"
        );
        for pairs in [
            vec![("use_emulator", "true"), ("endpoint", "http://127.0.0.1:9")],
            vec![("account_name", "devstoreaccount1"), ("endpoint", place)],
            vec![("account_name", "devstoreaccount1"), ("endpoint_url", "http://127.0.0.1:9/"), ("allow_http", "1")],
            vec![("connection_string", full.as_str())],
        ] {
            let store = parse("data", &pairs).expect("options");
            assert_eq!(endpoint(&store, &none).as_deref(), Some(place), "{pairs:?}");
            assert_eq!(value(&store, &none, Key::AccessKey).as_deref(), Some(EMULATOR_KEY), "{pairs:?}");
        }
        let store = parse("data", &[("connection_string", "UseDevelopmentStorage=true")]).expect("options");
        assert_eq!(endpoint(&store, &none).as_deref(), Some("http://127.0.0.1:10000/devstoreaccount1"));
    }

    #[test]
    fn a_connection_string_names_its_endpoint() {
        let text = "AccountName=a;AccountKey=x==;EndpointSuffix=core.chinacloudapi.cn";
        let settings = connection_string(text).expect("settings");
        assert_eq!(last(&settings, Key::Endpoint), Some("https://a.blob.core.chinacloudapi.cn"));
        assert_eq!(last(&settings, Key::AccessKey), Some("x=="));
    }

    #[test]
    fn a_connection_string_that_is_none_is_named_by_where_it_stands() {
        let wrong = |pairs: &[(&str, &str)], variables: &[(&str, &str)]| {
            let store = parse("data", pairs).expect("options");
            store.settings(&Sources::of(variables, &[])).expect_err("no name").to_string()
        };
        let message = wrong(&[("connection_string", "hunter2")], &[]);
        assert!(
            message.contains("storage_options: \"connection_string\"") && !message.contains("hunter2"),
            "{message}"
        );
        let message = wrong(&[("account_name", "mine")], &[("azure_storage_connection_string", "hunter2")]);
        assert!(message.starts_with("AZURE_STORAGE_CONNECTION_STRING must be"), "{message}");
        assert!(!message.contains("storage_options") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn what_belongs_to_an_account_is_not_taken_for_another() {
        let string = format!("AccountName=aaa;AccountKey={EMULATOR_KEY};EndpointSuffix=core.chinacloudapi.cn");
        let string = ("azure_storage_connection_string", string.as_str());
        let emulator = ("azure_storage_connection_string", "UseDevelopmentStorage=true");
        let named = [
            ("azure_storage_account_name", "aaa"),
            ("azure_storage_account_key", EMULATOR_KEY),
            ("azure_storage_sas_token", "sv=1&sig=x"),
            ("azure_storage_endpoint", "https://aaa.elsewhere"),
        ];
        let other_name = ("azure_storage_account_name", "bbb");
        for (authority, options, variables) in [
            ("data@bbb.dfs.core.windows.net", vec![], vec![string]),
            ("data@bbb.dfs.core.windows.net", vec![], vec![emulator]),
            ("data@bbb.dfs.core.windows.net", vec![], named.to_vec()),
            ("data", vec![("account_name", "bbb")], vec![string]),
            ("data", vec![("account_name", "bbb")], named.to_vec()),
            ("data", vec![("connection_string", "AccountName=bbb")], named.to_vec()),
            ("data", vec![], vec![string, other_name]),
        ] {
            let store = parse(authority, &options).expect("options");
            let mut variables = variables;
            variables.push(("azure_client_id", "service"));
            let sources = Sources::of(&variables, &[]);
            let settings = store.settings(&sources).expect("settings");
            assert_eq!(
                store.endpoint(&settings).expect("account"),
                "https://bbb.blob.core.windows.net",
                "{variables:?}"
            );
            assert_eq!(last(&settings, Key::AccessKey), None, "{variables:?}");
            assert_eq!(last(&settings, Key::SasKey), None, "{variables:?}");
            assert_eq!(last(&settings, Key::ClientId), Some("service"), "good for several accounts");
        }
        // The same account, or none that is named: all of it is meant.
        let store = parse("data@aaa.dfs.core.windows.net", &[]).expect("options");
        for variables in [vec![string], named.to_vec(), named[1..].to_vec()] {
            let sources = Sources::of(&variables, &[]);
            assert_eq!(value(&store, &sources, Key::AccessKey).as_deref(), Some(EMULATOR_KEY), "{variables:?}");
            assert_ne!(endpoint(&store, &sources).as_deref(), Some("https://aaa.blob.core.windows.net"));
        }
    }

    #[test]
    fn options_for_another_account_are_refused() {
        let string = format!("AccountName=aaa;AccountKey={EMULATOR_KEY}");
        let of_string = ("connection_string", string.as_str());
        for (authority, options, places) in [
            ("data@bbb.dfs.core.windows.net", vec![of_string], ["the URL", "the connection_string"]),
            ("data@bbb.dfs.core.windows.net", vec![("account_name", "aaa")], ["the URL", "the option account_name"]),
            ("data", vec![("account_name", "bbb"), of_string], ["the option account_name", "the connection_string"]),
            (
                "data@bbb.dfs.core.windows.net",
                vec![("connection_string", "UseDevelopmentStorage=true")],
                ["the URL", "the connection_string"],
            ),
        ] {
            let store = parse(authority, &options).expect("options");
            let message = store.settings(&Sources::default()).expect_err(authority).to_string();
            assert!(places.iter().all(|place| message.contains(place)) && message.contains("\"bbb\""), "{message}");
            assert!(!message.contains(EMULATOR_KEY), "{message}");
        }
        for (authority, options) in [
            ("data@aaa.dfs.core.windows.net", vec![of_string]),
            ("data@aaa.dfs.core.windows.net", vec![("account_name", "aaa")]),
            ("data", vec![of_string, ("account_name", "aaa")]),
            ("data@aaa.dfs.core.windows.net", vec![("connection_string", "AccountKey=eA==")]),
        ] {
            assert!(parse(authority, &options).expect("options").settings(&Sources::default()).is_ok(), "{options:?}");
        }
    }

    #[test]
    fn secrets_stay_hidden_and_options_go_before_variables() {
        let store = parse("data", &[("account_name", "mine"), ("sas_token", "sv=1&sig=hunter2")]).expect("options");
        assert!(!format!("{store:?}").contains("hunter2"));
        let connection = store.connect(&Sources::default()).expect("client");
        assert_eq!(connection.secrets.hide("x?sv=1&sig=hunter2".to_owned()), "x?(hidden)");
        let variables = Sources::of(&[("azure_storage_account_key", EMULATOR_KEY)], &[]);
        assert_eq!(value(&store, &variables, Key::AccessKey), None, "a login of one place goes with that place alone");
    }
}

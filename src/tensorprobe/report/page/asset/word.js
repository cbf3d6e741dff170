"use strict";
// What the page itself says, in two languages. Texts of the dump stay as they are.

const WORDS = JSON.parse(document.getElementById("words").textContent);
const LANGUAGES = { en: "en", zh: "zh-CN" };

let language = recall("language") ?? ((navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en");
if (!(language in LANGUAGES)) language = "en";

/** The words of a key, with `{name}` replaced by values; an unknown key is shown as its last part. */
function word(key, values = {}) {
  const text = WORDS[language][key] ?? WORDS.en[key] ?? plainKey(key);
  return text.replace(/\{(\w+)\}/g, (found, name) => (name in values ? String(values[name]) : found));
}

/** The words of what a dump or a comparison names, such as a role; unknown ones stay as they are. */
function wordOf(group, name) {
  const key = `${group}.${name}`;
  return Object.hasOwn(WORDS[language], key) ? WORDS[language][key] : String(name);
}

function plainKey(key) {
  return key.slice(key.indexOf(".") + 1).replaceAll("_", " ");
}

function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  remember("language", language);
}

/** What the reader chose the last time; a browser may refuse to keep it for files. */
function recall(name) {
  try {
    return localStorage.getItem(`tensorprobe.${name}`);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`tensorprobe.${name}`, value);
  } catch {
    console.info(`This browser does not keep the choice of ${name}.`);
  }
}

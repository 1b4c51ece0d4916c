/** Numbers, times and names as an analyst reads them. */

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return whole.format(number);
}

export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Two decimals, or as many as it takes not to round to 1. */
export function score(number, digits = number > 0.995 && number < 1 ? 4 : 2) {
  if (number === null || number === undefined) return "–";
  return number.toFixed(digits).replace(/^-(0\.?0*)$/, "$1"); // no minus before a zero
}

/** A share in per cent, with as many digits as it takes to tell it from 0 and from 100. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const away = Math.min(share, 1 - share);
  const digits = away <= 0 ? 0 : Math.min(9, Math.max(0, 1 - Math.floor(Math.log10(away * 100))));
  return `${(share * 100).toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")}\u00a0%`; // on one line
}

/** Two shares, the lower one first. */
export const range = ([low, high]) => `${percent(low)} to ${percent(high)}`;

/** A percentile no finer than so many random pairs can tell: "above 99.991 %" for 99.9999999 % among 11,175. */
export function percentile(share, extrapolated, pairs) {
  if (share === null || share === undefined) return "–";
  const rate = 1 - share;
  if (!pairs || !(extrapolated || rate < 10 / pairs)) return percent(share);
  const least = rate < 1 / pairs ? 1 / pairs : 10 / pairs;
  const digits = Math.max(0, -Math.floor(Math.log10(least * 100)));
  const shown = Math.floor((1 - least) * 100 * 10 ** digits + 1e-6) / 10 ** digits; // rounded down, so that it is true
  return `above ${shown.toFixed(digits)} %`;
}

/** A probability in whole per cent: labels support no finer number. */
export function roughly(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0.99) return "above 99 %";
  if (share < 0.01) return "below 1 %";
  return `${Math.round(share * 100)} %`;
}

/** How rarely a random pair scores as high, as far as so many pairs can tell: "1 in 1,200". */
export function oneIn(percentile, pairs) {
  const rate = 1 - percentile;
  if (rate < 10 / pairs) return `fewer than 1 in ${count(rate < 1 / pairs ? pairs : Math.floor(pairs / 10))}`;
  const times = 1 / rate;
  if (times < 10) return `1 in ${Number(times.toPrecision(2))}`;
  return `1 in ${count(Number(times.toPrecision(2)))}`;
}

const AGES = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [Infinity, "day", 86400]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** How long ago an ISO 8601 time was; "just now" within a minute. */
export function age(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  if (!(seconds >= 60)) return "just now";
  const [, unit, length] = AGES.find(([limit]) => seconds < limit);
  return relative.format(-Math.round(seconds / length), unit);
}

/** The same as an element that tells the exact time. */
export function ago(time) {
  const element = document.createElement("time");
  element.dateTime = time;
  element.title = new Date(time).toLocaleString();
  element.className = "age";
  element.textContent = age(time);
  return element;
}

setInterval(() => document.querySelectorAll("time.age").forEach((one) => { one.textContent = age(one.dateTime); }), 20000);

export function seconds(duration) {
  if (duration < 90) return counted(Math.max(1, Math.round(duration)), "second");
  return counted(Math.round(duration / 60), "minute");
}

/** A method as the API names it, with what it does to scores. */
export function methodName(method) {
  const [name, argument] = method.split(":");
  const known = METHOD_NAMES[name] ?? name;
  return argument ? `${known} (${Number(argument)})` : known;
}

/** When a version or a job was made, to the minute. */
export const dated = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** A version by what tells it from others: "version 2 (whitening, Nov 29, 2026, 4:05 PM)". */
export const versionName = ({ version, method, created }) => `version ${version} (${methodName(method)}, ${dated(created)})`;

/** What a calibration may be asked to do with its version. */
export const PROMOTIONS = {
  if_better: "if it is surely better",
  always: "always",
  never: "never, I look at the report first",
};

/** Why a version was put in use or not, where the record only says what was asked for. */
export function promotionReason(reason) {
  if (reason === "promote: always") return "It was to be put in use in any case.";
  if (reason === "promote: never") return "It was not to be put in use; that is left to you.";
  return sentence(plainly(reason));
}

/** A name for a domain or a threshold, made of what was written; "" where nothing of it can be used. */
export function nameLike(text) {
  const plain = text.normalize("NFKD").replace(/\p{M}/gu, "").replaceAll("ß", "ss").toLowerCase();
  return plain.replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 64).replace(/-+$/, "");
}

const PLAINER = [
  [/^encoder_mismatch: /, ""],
  [/, or name one in the request \(\S+\)/, ""],
  [/; charset names another encoding/, "; another encoding can be chosen where the file is chosen"],
  [/; sheet names another: /, "; the others are "],
  [/: GET \/calibrate\/\S+, and ask again/, "; ask again"],
  [/no precision of 0\.5(?=[:;])/, "no precision of 50 %"],
  [/ \(kind: grades\)$/, ""],
  [/\bpromote (a version( of this encoder)?)/, "put $1 in use"],
  [/\bpromoted?\b/g, "put in use"],
  [/\b(?:became|has become) champion\b/g, "was put in use"],
  [/\bchampion\b/g, "version in use"],
  [/\braw cosines?\b/g, "uncorrected similarity"],
  [/^texts: (?=[\d,]+ distinct)/, "the text has "],
  [/[;:] [^;:]*\b(?:GET|POST|PUT|DELETE) \/[^;]*/g, ""],
];

/** The service's words without its parameters and addresses: what a reader of this page can do instead. */
export const plainly = (text) => PLAINER.reduce((words, [part, plain]) => words.replace(part, plain), text);

/** With a capital and a full stop, which the service's reasons may lack. */
export function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

export const METHOD_NAMES = {
  auto: "auto (decide by evidence)",
  identity: "no correction needed",
  centring: "centring",
  "mean-direction": "remove the mean direction",
  sn: "standard normalization",
  nulling: "null the top directions",
  tempered: "tempered whitening",
  whitening: "whitening",
  "whitening-k": "whitening, first directions only",
  partial: "partial whitening",
  soft: "soft whitening",
  flow: "flow",
  "flow-paper": "flow, as published",
  "soft-flow": "flow after soft whitening",
};

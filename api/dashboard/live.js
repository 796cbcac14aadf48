// What htmx leaves to us: a tail does not grow for ever, and who is signed out is led to the form.
"use strict";
const RECORDS_MAX = 500;

document.addEventListener("htmx:sse:after:message", () => {
  const records = document.getElementById("records");
  while (records && records.childElementCount > RECORDS_MAX) records.lastElementChild.remove();
});
document.addEventListener("signed-out", () => location.reload());

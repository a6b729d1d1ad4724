/* Search from a file: a browser starts no worker from a file URL, so a hidden frame runs the worker's script. */
(function () {
  "use strict";
  if (window.location.protocol !== "file:") return;
  window.Worker = function (address) {
    var self = this, listeners = [], waiting = [], inside = null;
    var frame = document.createElement("iframe"), script = document.createElement("script");
    self.addEventListener = function (kind, listener) { if (kind === "message") listeners.push(listener); };
    self.removeEventListener = function (kind, listener) {
      listeners = listeners.filter(function (one) { return one !== listener; });
    };
    self.postMessage = function (data) {
      if (inside) inside.dispatchEvent(new MessageEvent("message", { data: data }));
      else waiting.push(data);
    };
    self.terminate = function () { frame.remove(); };
    script.src = new URL(address, window.location.href).href;
    frame.hidden = true;
    frame.title = "search";
    frame.srcdoc = "<!doctype html><title>search</title>" + script.outerHTML;
    frame.onload = function () {
      inside = frame.contentWindow;
      inside.postMessage = function (data) {
        var event = new MessageEvent("message", { data: data });
        if (self.onmessage) self.onmessage(event);
        listeners.slice().forEach(function (listener) { listener.call(self, event); });
      };
      waiting.splice(0).forEach(self.postMessage);
    };
    document.body.appendChild(frame);
  };
})();

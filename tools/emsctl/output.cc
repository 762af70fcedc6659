#include "tools/emsctl/output.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/cluster_id.h"
#include "tools/emsctl/context.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;

// To standard error.
void Line(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

std::string LineText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Say(const Context& context, StatusCode code, std::string_view message,
         std::string_view advice) {
  if (!context.json) {
    Line(fmt::format("emsctl: {}", message));
    if (!advice.empty()) Line(fmt::format("emsctl: {}", advice));
    return;
  }
  Json error = {{"code", CodeName(code)}, {"message", message}};
  if (!advice.empty()) error["advice"] = advice;
  Line(LineText(Json::object({{"error", std::move(error)}})));
}

}  // namespace

bool Print(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

bool PrintJson(const nlohmann::ordered_json& json) { return Print(JsonText(json)); }

int Show(const Context& context, const nlohmann::ordered_json& json, std::string_view text) {
  return (context.json ? PrintJson(json) : Print(text)) ? kExitOk : kExitFailed;
}

int ShowChange(const Context& context, nlohmann::ordered_json json, std::string text) {
  const ClusterId cluster = context.joined->cluster();
  if (cluster != kNoCluster) {
    json["cluster"] = ClusterText(cluster);
    text += fmt::format("cluster {}\n", ClusterText(cluster));
  }
  return Show(context, json, text);
}

int ShowDone(const Context& context, const std::string& verb, const std::string& name) {
  return ShowChange(context, nlohmann::ordered_json::object({{verb, name}}),
                    fmt::format("{} {}\n", verb, name));
}

int ExitCodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kNotFound:
      return kExitNotFound;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    default:
      return kExitFailed;
  }
}

int Complain(const Context& context, std::string_view what, const Status& status) {
  Say(context, status.code(),
      context.json ? fmt::format("{}: {}", what, Message(status))
                   : fmt::format("{}: {}", what, ToString(status)),
      Advice(status));
  return ExitCodeOf(status.code());
}

int Complain(const Context& context, const Status& status) {
  Say(context, status.code(), Message(status), {});
  return ExitCodeOf(status.code());
}

int ComplainOfUsage(const Context& context, std::string_view what) {
  Say(context, StatusCode::kInvalidArgument, what, {});
  return kExitUsage;
}

int Unreachable(const Context& context, const Status& status) {
  return Complain(context, "cannot ask the controller", status);
}

void Remark(const Context& context, std::string_view kind, std::string_view text) {
  Line(context.json ? LineText(Json::object({{kind, text}})) : fmt::format("{}: {}", kind, text));
}

std::string_view Advice(const Status& status) {
  // It was the controller that said so, and it says what to do.
  if (Message(status).find("ask again") != std::string_view::npos) return {};
  switch (status.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return "is the controller running, and is --controller (or EMS_CONTROLLER) its address? If "
             "it names a server: `emsctl node list` shows whether that is up; when its lease has "
             "ended, "
             "others serve its keys. --timeout gives more time";
    case StatusCode::kAborted:
      return "it may have been done, or not: `emsctl stat` says what the key holds, and the same "
             "command again makes it so";
    case StatusCode::kResourceExhausted:
      return "the pool or the namespace's quota is full and nothing can be evicted, or Puts wait "
             "for another server: see `emsctl status` and `emsctl namespace list`";
    case StatusCode::kOutOfRange:
      return "servers take values up to network.value_bytes_max of their configuration";
    case StatusCode::kAlreadyExists:
      return "it exists already, with other content or settings (`emsctl namespace set` "
             "changes "
             "those of a namespace)";
    default:
      return {};
  }
}

}  // namespace ems::emsctl

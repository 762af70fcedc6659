#include "model_files/format/internal/json_walk.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ems::model {
namespace {

class Walker final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Walker(JsonVisitor* visitor) : visitor_(visitor) {}
  const Status& status() const { return status_; }

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(number_integer_t value) override { return Scalar(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override { return Scalar(uint64_t{value}); }
  bool number_float(number_float_t value, const string_t&) override { return Scalar(value); }
  bool string(string_t& value) override { return Scalar(std::string_view(value)); }
  bool binary(binary_t&) override {
    return Fail(Error(StatusCode::kInternal, "JSON has no bytes"));
  }

  bool start_object(std::size_t) override { return Open(true); }
  bool end_object() override { return Close(true); }
  bool start_array(std::size_t) override { return Open(false); }
  bool end_array() override { return Close(false); }

  bool key(string_t& key) override {
    Level& level = levels_.back();
    if (!level.seen.insert(key).second) {
      return Fail(
          Error(StatusCode::kInvalidArgument, "JSON key '{}' appears twice", Printable(key)));
    }
    if (level.seen.size() == 1) {
      keys_.push_back(std::move(key));
    } else {
      keys_.back() = std::move(key);
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    std::string_view what = error.what();
    if (const size_t tag = what.find("] "); tag != std::string_view::npos)
      what.remove_prefix(tag + 2);
    return Fail(Error(StatusCode::kInvalidArgument, "no valid JSON, at byte {}: {}", position,
                      Printable(what, 200)));
  }

 private:
  struct Level {
    bool is_object;
    std::unordered_set<std::string> seen;
  };

  JsonPlace Place() const { return {.keys = keys_, .arrays = arrays_}; }
  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Check(Status status) { return status.ok() || Fail(std::move(status)); }

  bool Scalar(const JsonScalar& value) { return Check(visitor_->OnScalar(Place(), value)); }

  bool Open(bool is_object) {
    if (levels_.size() == kJsonDepthMax) {
      return Fail(Error(StatusCode::kInvalidArgument, "JSON is nested deeper than {} levels",
                        kJsonDepthMax));
    }
    if (!Check(visitor_->OnOpen(Place(), is_object))) return false;
    levels_.push_back({.is_object = is_object, .seen = {}});
    arrays_ += is_object ? 0 : 1;
    return true;
  }

  bool Close(bool is_object) {
    if (!levels_.back().seen.empty()) keys_.pop_back();
    arrays_ -= is_object ? 0 : 1;
    levels_.pop_back();
    return Check(visitor_->OnClose(Place(), is_object));
  }

  JsonVisitor* const visitor_;
  Status status_;
  std::vector<Level> levels_;
  std::vector<std::string> keys_;
  size_t arrays_ = 0;
};

}  // namespace

Status WalkJson(std::string_view text, JsonVisitor* visitor) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return Error(StatusCode::kInvalidArgument, "no valid JSON, at byte {}: a zero byte", zero);
  }
  Walker walker(visitor);
  const bool parsed = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &walker);
  if (!parsed && walker.status().ok()) {
    return Error(StatusCode::kInvalidArgument, "no valid JSON");
  }
  return walker.status();
}

}  // namespace ems::model

#pragma once
// The page for people, as page.html has it, made part of the program by cmake/embed_page.py.
#include <string_view>

namespace ems::pdc::api {

extern const std::string_view kPageHtml;
// The value of Content-Security-Policy that lets its own script and style run, and nothing else.
extern const std::string_view kPagePolicy;

}  // namespace ems::pdc::api

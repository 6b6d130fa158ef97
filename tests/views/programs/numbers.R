# The numbers that ncdf4 computes of the files of a NetCDF view: a line for each with its path, its units and its numbers.
suppressMessages(library(ncdf4))
for (path in list.files(commandArgs(TRUE)[1], pattern = "[.]nc$", full.names = TRUE)) {
    file <- nc_open(path)
    name <- if ("v" %in% names(file$var)) "v" else "time"
    values <- tryCatch(sprintf("%.17g", ncvar_get(file, name)), error = function(error) "error")
    units <- ncatt_get(file, name, "units")
    cat(path, if (units$hasatt) units$value else "", values, sep = "\t")
    cat("\n")
    nc_close(file)
}

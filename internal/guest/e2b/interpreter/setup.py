def _cove_setup():
    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    def add(media, method, module, name, convert):
        class Formatter(BaseFormatter):
            format_type = Unicode(media)
            print_method = ObjectName(method)
            _return_type = (dict, list, str)

            # matplotlib removes formatters of its figures, so match the type by name.
            def __call__(self, value):
                for kind in type(value).__mro__:
                    if kind.__name__ == name and kind.__module__.split(".")[0] == module:
                        return convert(value)
                return super().__call__(value)

        display.formatters[media] = Formatter(parent=display)

    def plain(value):
        import json
        try:
            return json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError):
            return None

    def columns(frame):
        import json
        try:
            return {str(name): json.loads(frame[name].to_json(orient="values", date_format="iso", default_handler=str))
                    for name in frame.columns}
        except Exception:
            return None

    def chart(figure):
        try:
            from e2b_charts import chart_figure_to_dict
        except ImportError:
            return None
        try:
            return plain(chart_figure_to_dict(figure))
        except Exception:
            return None

    def show_images(module):
        from IPython.display import display as show
        image, save = module.Image, module.Image.save

        def saved(self, fp, *args, **options):
            result = save(self, fp, *args, **options)
            if isinstance(fp, str):
                show(self)
            return result

        # There is no other viewer, so the client shows images.
        image.show = lambda self, *args, **options: show(self)
        image.save = saved

    def on_import(name, patch):
        """Call patch with a module as soon as it is imported. Importing it here would delay the first execution."""
        import sys
        from importlib.machinery import PathFinder
        if name in sys.modules:
            return patch(sys.modules[name])

        class Finder:
            @staticmethod
            def find_spec(wanted, path=None, target=None):
                spec = PathFinder.find_spec(wanted, path, target) if wanted == name else None
                if spec is None or spec.loader is None:
                    return None
                run = spec.loader.exec_module

                def run_and_patch(module):
                    run(module)
                    patch(module)

                spec.loader.exec_module = run_and_patch
                return spec

        sys.meta_path.insert(0, Finder)

    on_import("PIL.Image", show_images)
    display = get_ipython().display_formatter
    add("e2b/data", "_repr_e2b_data_", "pandas", "DataFrame", columns)
    add("e2b/chart", "_repr_e2b_chart_", "matplotlib", "Figure", chart)
    values = display.formatters["application/json"]
    for kind in (dict, list):
        values.for_type(kind, plain)


_cove_setup()
del _cove_setup
